import { escapeHtml } from '../core/html.ts'

/** HTML of the browser's side of a stream. */

export interface SourceTagOptions {
  /** Cursor of the page: whatever was broadcast above it is delivered. Default: the watermark now. */
  since?: number | undefined
  /** Put the script that defines the element in front. Default false. */
  script?: boolean | undefined
  /** CSP nonce of that script. */
  nonce?: string | undefined
  /** More attributes of the element; true: without a value, false, null and undefined: left out. */
  attributes?: Record<string, string | number | boolean | null | undefined> | undefined
}

const ownAttributes = new Set(['src', 'since-id'])

export function sourceTag(
  urls: { src: string; script: string },
  since: number,
  options: Omit<SourceTagOptions, 'since'>,
): string {
  const { script, nonce, attributes = {} } = options
  if (!Number.isSafeInteger(since) || since < 0)
    throw new TypeError(`since should be a message id or 0, instead got ${String(since)}`)
  for (const name of Object.keys(attributes)) {
    if (!/^[A-Za-z][A-Za-z0-9_.-]*$/.test(name) || ownAttributes.has(name.toLowerCase()))
      throw new TypeError(`${JSON.stringify(name)} cannot be an attribute of the element`)
  }
  const element = tag('pgbus-stream-source', { src: urls.src, 'since-id': since, ...attributes })
  return script === true ? tag('script', { type: 'module', nonce, src: urls.script }) + element : element
}

function tag(name: string, attributes: NonNullable<SourceTagOptions['attributes']>): string {
  let text = ''
  for (const [attribute, value] of Object.entries(attributes)) {
    if (value === true) text += ` ${attribute}`
    else if (value !== false && value !== null && value !== undefined)
      text += ` ${attribute}="${escapeHtml(String(value))}"`
  }
  return `<${name}${text}></${name}>`
}
