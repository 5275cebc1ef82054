import { types } from 'node:util'
import { PayloadTooLargeError, SerializationError } from './errors.ts'

/**
 * Values as JSON and back. What JSON lacks travels as `{"$type": name, "value": …}`; what no codec knows is an
 * error that names the path. Nothing changes silently, with four documented exceptions that JavaScript users
 * expect: `undefined` members are left out, `undefined` and holes in arrays become null, lone surrogates become
 * U+FFFD, a `Buffer` arrives as `Uint8Array`.
 *
 * Stored text passes through `jsonb`, which knows no negative zero and writes every integer in full. So a number
 * that is no safe integer, or is negative zero, travels tagged; and an integer literal that a number cannot hold
 * exactly was written by somebody else and is read as `bigint`.
 */

export type JsonValue =
  | null
  | boolean
  | number
  | string
  | JsonValue[]
  | { [key: string]: JsonValue | undefined }

export interface EncodeOptions {
  /** First part of paths in errors. Default `args`. */
  root?: string | undefined
  /** Longest JSON text, in bytes. Default 64 MiB. */
  maxBytes?: number | undefined
  /** Refuse whatever needs a codec. Default false. */
  plain?: boolean | undefined
}

export interface DecodeOptions {
  /** First part of paths in errors. Default `args`. */
  root?: string | undefined
  /** Take objects with `$type` as they are. Default false. */
  plain?: boolean | undefined
}

/** Far below the 256 MB of one `jsonb` value, and what a process may hold many times over. */
export const maxJsonBytes = 64 * 1024 * 1024

const maxDepth = 100
/** One level of a `Map` takes three of JSON. */
const maxEncodedDepth = 4 * maxDepth

/**
 * The JSON form of a value.
 * @throws SerializationError naming the path; PayloadTooLargeError as soon as strings alone are above the limit.
 */
export function encode(value: unknown, options: EncodeOptions = {}): JsonValue {
  return new Encoder(options).encode(value)
}

/** The JSON text of a value; limits as {@link encode}. */
export function encodeText(value: unknown, options: EncodeOptions = {}): string {
  return stringify(encode(value, options), options)
}

/**
 * The text of something that is JSON already.
 * @throws PayloadTooLargeError
 */
export function stringify(value: JsonValue, options: Pick<EncodeOptions, 'root' | 'maxBytes'> = {}): string {
  const { root = 'args', maxBytes = maxJsonBytes } = options
  let text: string
  try {
    text = JSON.stringify(value)
  } catch (cause) {
    // The one thing that can fail here is the length of the string.
    throw new PayloadTooLargeError(`${root}: the JSON text is above the limit of ${maxBytes} bytes`, {
      cause,
    })
  }
  const bytes = Buffer.byteLength(text)
  if (bytes > maxBytes) throw tooLarge(root, bytes, maxBytes)
  return text
}

/**
 * Parses JSON text. Integers that a number cannot hold exactly become `bigint`.
 * @throws SerializationError
 */
export function parse(text: string, root = 'message'): unknown {
  try {
    return /\d{16}/.test(text) ? parseExactly(text) : JSON.parse(text)
  } catch (cause) {
    // The parser's own text would quote the message.
    throw new SerializationError(`${root}: not JSON`, { cause })
  }
}

/**
 * The value behind its JSON form. Takes no prototype, class or code from the input; `__proto__` members are
 * dropped.
 * @throws SerializationError naming the path.
 */
export function decode(json: unknown, options: DecodeOptions = {}): unknown {
  return new Decoder(options).decode(json)
}

class Encoder {
  readonly #root: string
  readonly #maxBytes: number
  readonly #plain: boolean
  readonly #path: (string | number)[] = []
  readonly #ancestors: object[] = []
  /** A lower bound of the size: characters of strings and keys. */
  #characters = 0

  constructor(options: EncodeOptions) {
    this.#root = options.root ?? 'args'
    this.#maxBytes = options.maxBytes ?? maxJsonBytes
    this.#plain = options.plain ?? false
  }

  encode(value: unknown): JsonValue {
    switch (typeof value) {
      case 'undefined':
        return null
      case 'boolean':
        return value
      case 'string':
        return this.#string(value)
      case 'number':
        return this.#number(value)
      case 'bigint':
        return this.#tagged('BigInt', String(value))
      case 'function':
      case 'symbol':
        return this.#fail(`cannot serialize a ${typeof value}`)
      default:
        return value === null ? null : this.#object(value as object)
    }
  }

  #string(text: string): string {
    this.#count(text.length)
    if (text.includes('\0')) this.#fail('a string with U+0000 cannot be stored')
    return toWellFormed(text)
  }

  #number(value: number): JsonValue {
    if (!Number.isFinite(value)) this.#fail(`cannot serialize ${value}`)
    if (Object.is(value, -0)) return this.#tagged('Number', '-0')
    if (Number.isInteger(value) && !Number.isSafeInteger(value)) return this.#tagged('Number', String(value))
    return value
  }

  #object(value: object): JsonValue {
    if (this.#ancestors.includes(value)) this.#fail('cannot serialize a cycle')
    if (this.#ancestors.length >= maxDepth) this.#fail(`deeper than ${maxDepth} levels`)
    this.#ancestors.push(value)
    const encoded = this.#byKind(
      value,
      this.#read(() => kindOf(value)),
    )
    this.#ancestors.pop()
    return encoded
  }

  #byKind(value: object, kind: string): JsonValue {
    switch (kind) {
      case 'Array':
        return this.#array(value as unknown[])
      case 'Object':
        return this.#plainObject(value as Record<string, unknown>)
      case 'Date': {
        const time = Date.prototype.getTime.call(value)
        if (Number.isNaN(time)) this.#fail('cannot serialize an invalid date')
        return this.#tagged('Date', new Date(time).toISOString())
      }
      case 'Map':
        return this.#tagged(
          'Map',
          [...(value as Map<unknown, unknown>)].map(([key, member], index) => [
            this.#member(`key ${index}`, () => key),
            this.#member(`value ${index}`, () => member),
          ]),
        )
      case 'Set':
        return this.#tagged(
          'Set',
          [...(value as Set<unknown>)].map((member, index) => this.#member(index, () => member)),
        )
      case 'Uint8Array': {
        const { buffer, byteOffset, byteLength } = value as Uint8Array
        this.#count(Math.ceil(byteLength / 3) * 4)
        return this.#tagged('Uint8Array', Buffer.from(buffer, byteOffset, byteLength).toString('base64'))
      }
      case 'URL':
        return this.#tagged('URL', this.#string((value as URL).href))
      default:
        return this.#fail(`cannot serialize an instance of ${kind}`)
    }
  }

  #array(values: unknown[]): JsonValue[] {
    const { length } = values
    this.#count(2 * length)
    const encoded: JsonValue[] = new Array(length)
    for (let index = 0; index < length; index += 1) {
      encoded[index] = this.#member(index, () => values[index])
    }
    const names = this.#read(() => Object.keys(values))
    // Indexes come first in the order of keys.
    const last = names.at(-1)
    if (last !== undefined && !isIndex(last, length)) {
      this.#path.push(last)
      this.#fail('an array with named members cannot be serialized')
    }
    return encoded
  }

  #plainObject(value: Record<string, unknown>): JsonValue {
    const encoded: { [key: string]: JsonValue } = {}
    for (const symbol of this.#read(() => Object.getOwnPropertySymbols(value))) {
      if (this.#read(() => Object.prototype.propertyIsEnumerable.call(value, symbol))) {
        this.#path.push(String(symbol))
        this.#fail('cannot serialize a member whose key is a symbol')
      }
    }
    let tagged = false
    for (const key of this.#read(() => Object.keys(value))) {
      const member = this.#member(key, () => value[key], true)
      if (member === undefined) continue
      if (key === '__proto__') {
        this.#path.push(key)
        this.#fail('a member of this name cannot be stored')
      }
      if (key === '$type') tagged = true
      encoded[this.#string(key)] = member
    }
    return tagged && !this.#plain ? { $type: 'Object', value: encoded } : encoded
  }

  /** Encodes what `read` gives, at one step below. With `optional`, undefined stays undefined. */
  #member(step: string | number, read: () => unknown): JsonValue
  #member(step: string | number, read: () => unknown, optional: true): JsonValue | undefined
  #member(step: string | number, read: () => unknown, optional = false): JsonValue | undefined {
    this.#path.push(step)
    const value = this.#read(read)
    const encoded = optional && value === undefined ? undefined : this.encode(value)
    this.#path.pop()
    return encoded
  }

  #read<T>(read: () => T): T {
    try {
      return read()
    } catch (cause) {
      throw new SerializationError(`${this.#where()}: reading it failed`, { cause })
    }
  }

  #tagged(type: string, value: JsonValue): JsonValue {
    if (this.#plain) this.#fail(`cannot store a ${type} here, only plain JSON`)
    return { $type: type, value }
  }

  #count(characters: number): void {
    this.#characters += characters
    if (this.#characters > this.#maxBytes) throw tooLarge(this.#root, this.#characters, this.#maxBytes)
  }

  #fail(reason: string): never {
    throw new SerializationError(`${this.#where()}: ${reason}`)
  }

  #where(): string {
    return pathText(this.#root, this.#path)
  }
}

class Decoder {
  readonly #root: string
  readonly #plain: boolean
  readonly #path: (string | number)[] = []

  constructor(options: DecodeOptions) {
    this.#root = options.root ?? 'args'
    this.#plain = options.plain ?? false
  }

  decode(json: unknown): unknown {
    if (typeof json !== 'object' || json === null) return json
    if (this.#path.length > maxEncodedDepth) this.#fail(`deeper than ${maxEncodedDepth} levels`)
    if (Array.isArray(json)) return json.map((member, index) => this.#member(index, member))
    const object = json as Record<string, unknown>
    return !this.#plain && Object.hasOwn(object, '$type') ? this.#tagged(object) : this.#object(object)
  }

  #object(json: Record<string, unknown>): Record<string, unknown> {
    const object: Record<string, unknown> = {}
    for (const key of Object.keys(json)) {
      if (key !== '__proto__') object[key] = this.#member(key, json[key])
    }
    return object
  }

  #tagged(json: Record<string, unknown>): unknown {
    const { $type: type, value } = json
    if (Object.keys(json).length !== 2 || !Object.hasOwn(json, 'value')) return this.#malformed(type)
    switch (type) {
      case 'Object':
        return isObject(value) ? this.#object(value) : this.#malformed(type)
      case 'Date': {
        const date = typeof value === 'string' ? new Date(value) : undefined
        return date && !Number.isNaN(date.getTime()) ? date : this.#malformed(type)
      }
      case 'BigInt':
        return typeof value === 'string' && /^-?\d+$/.test(value) ? BigInt(value) : this.#malformed(type)
      case 'Number': {
        const number = typeof value === 'string' && value !== '' ? Number(value) : Number.NaN
        return Number.isFinite(number) ? number : this.#malformed(type)
      }
      case 'Map': {
        const isPair = (entry: unknown) => Array.isArray(entry) && entry.length === 2
        if (!Array.isArray(value) || !value.every(isPair)) return this.#malformed(type)
        return new Map(
          (value as [unknown, unknown][]).map(([key, member], index) => [
            this.#member(`key ${index}`, key),
            this.#member(`value ${index}`, member),
          ]),
        )
      }
      case 'Set':
        if (!Array.isArray(value)) return this.#malformed(type)
        return new Set(value.map((member, index) => this.#member(index, member)))
      case 'Uint8Array':
        // A copy: the pool behind a small Buffer is shared.
        return typeof value === 'string'
          ? new Uint8Array(Buffer.from(value, 'base64'))
          : this.#malformed(type)
      case 'URL':
        return typeof value === 'string' && URL.canParse(value) ? new URL(value) : this.#malformed(type)
      default:
        return this.#fail(`unknown $type ${JSON.stringify(type)}`)
    }
  }

  #member(step: string | number, json: unknown): unknown {
    this.#path.push(step)
    const value = this.decode(json)
    this.#path.pop()
    return value
  }

  #malformed(type: unknown): never {
    return this.#fail(`malformed value of $type ${JSON.stringify(type)}`)
  }

  #fail(reason: string): never {
    throw new SerializationError(`${pathText(this.#root, this.#path)}: ${reason}`)
  }
}

/** `Object` for plain objects, the name of a built-in or of the class. Objects of another realm count as ours. */
function kindOf(value: object): string {
  const prototype = Object.getPrototypeOf(value)
  if (prototype === null) return 'Object'
  if (Array.isArray(value)) return prototype === Array.prototype ? 'Array' : className(prototype)
  if (types.isUint8Array(value)) {
    const name = className(prototype)
    return name === 'Buffer' ? 'Uint8Array' : name
  }
  const name = className(prototype)
  switch (name) {
    case 'Object':
      return Object.getPrototypeOf(prototype) === null ? name : 'a class named Object'
    case 'Date':
      return types.isDate(value) ? name : 'a class named Date'
    case 'Map':
      return types.isMap(value) ? name : 'a class named Map'
    case 'Set':
      return types.isSet(value) ? name : 'a class named Set'
    case 'URL':
      return value instanceof URL ? name : 'a class named URL'
    case 'Array':
    case 'Uint8Array':
      return `a class named ${name}`
    default:
      return name
  }
}

function className(prototype: { constructor?: unknown }): string {
  const named = prototype.constructor
  return typeof named === 'function' && named.name !== '' ? named.name : 'an unnamed class'
}

function isIndex(name: string, length: number): boolean {
  const index = Number(name)
  return Number.isInteger(index) && index >= 0 && index < length && String(index) === name
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function toWellFormed(text: string): string {
  // Node has it; the language level of the types does not.
  return (text as string & { toWellFormed(): string }).toWellFormed()
}

function pathText(root: string, path: readonly (string | number)[]): string {
  let text = root
  for (const step of path) {
    if (typeof step === 'number') text += `[${step}]`
    else if (/^[A-Za-z_$][\w$]*$/.test(step)) text += `.${step}`
    else text += `[${JSON.stringify(step.length > 60 ? `${step.slice(0, 60)}…` : step)}]`
  }
  return text.length > 500 ? `${text.slice(0, 250)} … ${text.slice(-240)}` : text
}

function tooLarge(root: string, bytes: number, limit: number): PayloadTooLargeError {
  return new PayloadTooLargeError(
    `${root}: ${bytes} bytes or more, the limit is ${limit} — store large data elsewhere and enqueue a reference`,
  )
}

/** `JSON.parse` that keeps integers exact: the literals in question are handed over as marked strings. */
function parseExactly(text: string): unknown {
  // Checks the grammar before the text is taken apart.
  const inexact = JSON.parse(text)
  const marker = freeMarker(text)
  const marked = markIntegers(text, marker)
  if (marked === text) return inexact
  return JSON.parse(marked, (_key, value) =>
    typeof value === 'string' && value.startsWith(marker) ? BigInt(value.slice(marker.length)) : value,
  )
}

/** A prefix that no string of the text has. */
function freeMarker(text: string): string {
  for (let number = 0; ; number += 1) {
    const marker = `integer ${number}:`
    if (!text.includes(marker) && !text.includes('\\u')) return marker
    if (!JSON.stringify(JSON.parse(text)).includes(marker)) return marker
  }
}

const numberLiteral = /-?\d+(\.\d+)?([eE][+-]?\d+)?/y

function markIntegers(text: string, marker: string): string {
  let marked = ''
  let copied = 0
  let position = 0
  while (position < text.length) {
    const code = text.charCodeAt(position)
    if (code === 0x22) {
      position = endOfString(text, position)
    } else if (code === 0x2d || (code >= 0x30 && code <= 0x39)) {
      numberLiteral.lastIndex = position
      const match = numberLiteral.exec(text)!
      const literal = match[0]
      if (match[1] === undefined && match[2] === undefined && !Number.isSafeInteger(Number(literal))) {
        marked += `${text.slice(copied, position)}"${marker}${literal}"`
        copied = position + literal.length
      }
      position += literal.length
    } else {
      position += 1
    }
  }
  return marked + text.slice(copied)
}

/** Position after the closing quote of the string that opens at `start`. */
function endOfString(text: string, start: number): number {
  for (let quote = text.indexOf('"', start + 1); ; quote = text.indexOf('"', quote + 1)) {
    let backslashes = 0
    while (text.charCodeAt(quote - 1 - backslashes) === 0x5c) backslashes += 1
    if (backslashes % 2 === 0) return quote + 1
  }
}
