/** Everything that depends on what a child is for. A new role is a case in each of these functions. */
import type { ResolvedConsumerEntry } from '../../config/consumers.ts'
import type { ResolvedConfig, ResolvedWorkerEntry } from '../../config/options.ts'
import { hasRole } from '../../config/roles.ts'
import type { ProcessKind } from '../../jobs/heartbeat.ts'
import type { MaintenanceRole } from '../../maintenance/maintenance.ts'
import type { ChildSpec } from '../messages.ts'

/** A place for one child, by name. */
export interface SlotPlan {
  readonly name: string
  readonly spec: ChildSpec
}

/** The workers that a host of this configuration runs. */
export function activeWorkers(
  config: Pick<ResolvedConfig, 'roles' | 'workers'>,
): readonly ResolvedWorkerEntry[] {
  return hasRole(config, 'workers') ? config.workers : []
}

/** The consumers that a host of this configuration runs. */
export function activeConsumers(
  config: Pick<ResolvedConfig, 'roles' | 'consumers'>,
): readonly ResolvedConsumerEntry[] {
  return hasRole(config, 'consumers') ? config.consumers : []
}

/** The places that a configuration asks for, in the order in which they are filled. */
export function planSlots(config: ResolvedConfig): SlotPlan[] {
  const workers = activeWorkers(config).flatMap((entry, index) =>
    Array.from({ length: entry.processes }, (_, copy) => ({
      name: `worker:${index}.${copy}`,
      spec: { role: 'worker' as const, entry },
    })),
  )
  const consumers = activeConsumers(config).map((entry, index) => ({
    name: `consumer:${index}`,
    spec: { role: 'consumer' as const, entry },
  }))
  const parts: MaintenanceRole[] = []
  if (hasRole(config, 'dispatcher')) parts.push('dispatcher')
  if (schedules(config)) parts.push('scheduler')
  if (hasRole(config, 'outbox') && config.outbox.enabled) parts.push('outbox')
  if (parts.length === 0) return [...workers, ...consumers]
  return [...workers, ...consumers, { name: 'maintenance', spec: { role: 'maintenance', parts } }]
}

/** By itself only where the configuration has tasks: most hosts have none. */
function schedules(config: ResolvedConfig): boolean {
  return hasRole(config, 'scheduler') && (config.roles !== null || config.recurring.tasks !== null)
}

/** Connections of one child, unless `pool.size` says otherwise. */
export function poolSize(config: ResolvedConfig, spec: ChildSpec): number {
  return config.pool.size ?? Math.max(2, connectionsOf(spec))
}

function connectionsOf(spec: ChildSpec): number {
  switch (spec.role) {
    case 'worker':
      // As many as jobs run at once, since each claims and finishes by itself.
      return spec.entry.concurrency
    case 'consumer':
      // Handlers in a transaction have one each, and claims and ends must not wait for them.
      return spec.entry.concurrency + 2
    case 'maintenance':
      return spec.parts.length
  }
}

/** Logical names, topics and patterns, as configured. */
export function queuesOf(spec: ChildSpec): readonly string[] {
  switch (spec.role) {
    case 'worker':
      return spec.entry.queues
    case 'consumer':
      return spec.entry.topics
    case 'maintenance':
      return []
  }
}

/** Whether notifications are of use to it. */
export function listens(spec: ChildSpec): boolean {
  return spec.role === 'maintenance' ? spec.parts.includes('outbox') : true
}

/** Whether it runs code of the application. */
export function needsModules(spec: ChildSpec): boolean {
  return spec.role !== 'maintenance'
}

/** Kinds of the rows that it has in `pgbus_processes`. */
export function processKinds(spec: ChildSpec): readonly ProcessKind[] {
  if (spec.role !== 'maintenance') return [spec.role]
  return spec.parts.map(part => (part === 'outbox' ? 'outbox_poller' : part))
}
