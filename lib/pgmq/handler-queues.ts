const key = Symbol.for('pgbus.handlerQueues')
const holder = globalThis as { [key]?: Set<string> }

/**
 * Logical names of the queues that belong to event handlers of this process. Workers that read by pattern leave them
 * out, also while nothing is bound to them.
 */
holder[key] ??= new Set<string>()
export const handlerQueues: Set<string> = holder[key]
