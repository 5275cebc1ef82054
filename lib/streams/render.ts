import { escapeHtml } from '../core/html.ts'

/** HTML, or what makes it when the broadcast is sent. */
export type Render = string | (() => string | Promise<string>)

export interface TurboStreamOptions {
  /** Id of the element that is changed. */
  target: string
  /** What happens to it; Turbo knows `append`, `prepend`, `replace` (default), `update`, `before`, `after`, `remove`. */
  action?: string | undefined
  /** What it is changed to; not looked at for `remove`. */
  render?: Render | undefined
}

const optionNames = ['target', 'action', 'render']

/**
 * The HTML of a `<turbo-stream>` element.
 * @throws TypeError
 */
export async function turboStream(options: TurboStreamOptions): Promise<string> {
  const { target, action = 'replace', render = '' } = options
  if (typeof target !== 'string' || target === '')
    throw new TypeError(`target should be the id of an element, instead got ${JSON.stringify(target)}`)
  if (typeof action !== 'string' || action === '')
    throw new TypeError(`action should be the name of a Turbo action, instead got ${JSON.stringify(action)}`)
  const attributes = `action="${escapeHtml(action)}" target="${escapeHtml(target)}"`
  if (action === 'remove') return `<turbo-stream ${attributes}></turbo-stream>`
  const html: unknown = typeof render === 'function' ? await render() : render
  if (typeof html !== 'string')
    throw new TypeError(`render should give HTML as a string, instead got ${typeof html}`)
  return `<turbo-stream ${attributes}><template>${html}</template></turbo-stream>`
}

/** The rest of the options, for the broadcast itself. */
export function withoutRender<O extends TurboStreamOptions>(
  options: O,
): Omit<O, 'action' | 'render' | 'target'> {
  const rest = Object.entries(options).filter(([name]) => !optionNames.includes(name))
  return Object.fromEntries(rest) as Omit<O, 'action' | 'render' | 'target'>
}
