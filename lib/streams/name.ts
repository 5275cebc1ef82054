import { InvalidStreamNameError } from '../core/errors.ts'

/** What names a stream: text, an id, an object that knows its key, or several of these, joined with `:`. */
export type StreamName = string | number | { toStreamKey(): string } | readonly StreamName[]

export const maxStreamNameBytes = 255

/**
 * The name of a stream as text: 1 to 255 bytes, without U+0000.
 * @throws InvalidStreamNameError
 */
export function streamName(name: StreamName): string {
  const text = textOf(name, name)
  const bytes = Buffer.byteLength(text)
  if (bytes > maxStreamNameBytes) {
    throw new InvalidStreamNameError(
      `a stream name has at most ${maxStreamNameBytes} bytes, ${show(text)} has ${bytes} — use an id instead of a text`,
    )
  }
  if (text.includes('\0')) throw new InvalidStreamNameError(`a stream name cannot hold U+0000: ${show(text)}`)
  // Two names that differ only there would be one once they are UTF-8.
  if (/\p{Surrogate}/u.test(text))
    throw new InvalidStreamNameError(`a stream name cannot hold half of a surrogate pair: ${show(text)}`)
  return text
}

function textOf(name: unknown, whole: unknown): string {
  if (typeof name === 'string') {
    if (name !== '') return name
    throw new InvalidStreamNameError(`a stream name, or a part of one, is empty: ${show(whole)}`)
  }
  if (typeof name === 'number' && Number.isFinite(name)) return String(name)
  if (Array.isArray(name)) {
    if (name.length > 0) return name.map(part => textOf(part, whole)).join(':')
    throw new InvalidStreamNameError('a stream name cannot be an empty list')
  }
  if (hasStreamKey(name)) {
    const key = name.toStreamKey()
    if (typeof key === 'string') return textOf(key, whole)
    throw new InvalidStreamNameError(`toStreamKey() should return a string, instead got ${show(key)}`)
  }
  throw new InvalidStreamNameError(
    `a stream name should be a string, a number, an object with toStreamKey() or a list of these, instead got ${show(name)}`,
  )
}

function hasStreamKey(value: unknown): value is { toStreamKey(): unknown } {
  return (
    typeof value === 'object' &&
    value !== null &&
    typeof (value as { toStreamKey?: unknown }).toStreamKey === 'function'
  )
}

function show(value: unknown): string {
  let text: string
  try {
    text = typeof value === 'number' ? String(value) : (JSON.stringify(value) ?? String(value))
  } catch {
    text = Object.prototype.toString.call(value)
  }
  return text.length > 80 ? `${text.slice(0, 80)}…` : text
}
