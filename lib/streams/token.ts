import { createHmac, timingSafeEqual } from 'node:crypto'
import { type Duration, parseDuration } from '../core/duration.ts'
import { InvalidSignedNameError, InvalidStreamNameError, MissingSecretError } from '../core/errors.ts'
import { streamName } from './name.ts'

/**
 * Signed stream names: `<data>--<hex of HMAC-SHA256(secret, data)>`, the message format of Rails with SHA-256
 * and JSON, so that names signed there with the same key verify here. Whoever has one may follow the stream.
 */

export interface TokenOptions {
  /** How long the token can be used to connect. Default: for ever. */
  expiresIn?: Duration | undefined
  /** For whom it was made; handed to `authorize`. */
  subject?: string | undefined
}

/** What a token says. */
export interface SignedName {
  stream: string
  subject: string | undefined
}

const signatureLength = 64
/** Longer than any name with expiry and subject; keeps hashing off what cannot be a token. */
const maxTokenLength = 4_096

/**
 * Signs with the first secret.
 * @throws MissingSecretError
 */
export function signName(
  stream: string,
  secrets: readonly string[],
  options: TokenOptions = {},
  now: number = Date.now(),
): string {
  const [secret] = secrets
  if (secret === undefined) throw missingSecret()
  const { subject } = options
  const expires = expiryOf(options.expiresIn, now)
  const plain = expires === undefined && subject === undefined
  const content = plain
    ? stream
    : {
        s: stream,
        ...(expires === undefined ? {} : { exp: expires }),
        ...(subject === undefined ? {} : { sub: subject }),
      }
  const data = Buffer.from(JSON.stringify(content)).toString('base64url')
  return `${data}--${signature(secret, data).toString('hex')}`
}

/**
 * Reads a token that was signed with any of the secrets.
 * @throws InvalidSignedNameError, always with the same text; MissingSecretError
 */
export function verifyName(token: string, secrets: readonly string[], now: number = Date.now()): SignedName {
  if (secrets.length === 0) throw missingSecret()
  const end = token.length - signatureLength
  const data = token.slice(0, Math.max(0, end - 2))
  const received = token.slice(Math.max(0, end))
  // By position: base64url data may itself hold two hyphens in a row.
  const isFormed =
    token.length <= maxTokenLength &&
    data !== '' &&
    token.slice(end - 2, end) === '--' &&
    /^[0-9a-f]{64}$/.test(received)
  if (!isFormed || !isSigned(data, Buffer.from(received, 'hex'), secrets)) throw invalid()
  return readContent(data, now)
}

export function missingSecret(): MissingSecretError {
  return new MissingSecretError(
    'streams.secret is not set — set it, or PGBUS_STREAMS_SECRET, to 32 random bytes or more; all processes of an application share it',
  )
}

/** Tries every secret, so that the time taken does not tell which one matched. */
function isSigned(data: string, received: Buffer, secrets: readonly string[]): boolean {
  let matches = 0
  for (const secret of secrets) matches += timingSafeEqual(signature(secret, data), received) ? 1 : 0
  return matches > 0
}

function signature(secret: string, data: string): Buffer {
  return createHmac('sha256', secret).update(data).digest()
}

function readContent(data: string, now: number): SignedName {
  const content = decodeJson(data)
  if (typeof content === 'string') return named(content, undefined)
  if (!isObject(content)) throw invalid()
  if (isObject(content._rails)) return readRails(content._rails, now)
  const { s, exp, sub } = content
  if (exp !== undefined && !(typeof exp === 'number' && exp * 1_000 > now)) throw invalid()
  if (sub !== undefined && typeof sub !== 'string') throw invalid()
  return named(s, sub)
}

/** Two generations of the metadata that Rails puts around a message. */
function readRails({ data, message, exp, pur }: Record<string, unknown>, now: number): SignedName {
  if (pur !== undefined && pur !== null) throw invalid()
  if (exp !== undefined && exp !== null && !(typeof exp === 'string' && Date.parse(exp) > now))
    throw invalid()
  if (data !== undefined) return named(data, undefined)
  return named(typeof message === 'string' ? decodeJson(message) : undefined, undefined)
}

function named(stream: unknown, subject: string | undefined): SignedName {
  if (typeof stream !== 'string') throw invalid()
  try {
    return { stream: streamName(stream), subject }
  } catch (error) {
    if (error instanceof InvalidStreamNameError) throw invalid()
    throw error
  }
}

/** Padded base64 as Rails writes it, or base64url without padding. */
function decodeJson(data: string): unknown {
  const isBase64 = /^[A-Za-z0-9+/]+={0,2}$/.test(data) && data.length % 4 === 0
  if (!isBase64 && !/^[A-Za-z0-9_-]+$/.test(data)) throw invalid()
  try {
    return JSON.parse(Buffer.from(data, isBase64 ? 'base64' : 'base64url').toString('utf8'))
  } catch {
    throw invalid()
  }
}

function expiryOf(expiresIn: Duration | undefined, now: number): number | undefined {
  if (expiresIn === undefined) return undefined
  const ms = parseDuration(expiresIn)
  if (ms === undefined || ms === 0)
    throw new TypeError(
      `expiresIn should be a duration such as "1h", instead got ${JSON.stringify(expiresIn)}`,
    )
  return Math.ceil((now + ms) / 1_000)
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function invalid(): InvalidSignedNameError {
  return new InvalidSignedNameError('invalid signed stream name')
}
