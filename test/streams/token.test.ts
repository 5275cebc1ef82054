import { createHmac } from 'node:crypto'
import fc from 'fast-check'
import t from 'tap'
import { signName, verifyName } from '../../lib/streams/token.ts'

const secret = '0123456789abcdef0123456789abcdef'
const known = 'InJvb206NDIi--c3c62262ceb234b7e6f74dbc4f268ddeade169460b556c10f6305c0184b7fa09'
const now = Date.parse('2026-03-01T12:00:00Z')

/** A token as somebody else writes it. */
function foreign(content: unknown, encoding: 'base64' | 'base64url' = 'base64', key = secret): string {
  return signed(Buffer.from(JSON.stringify(content)).toString(encoding), key)
}

function signed(data: string, key = secret): string {
  return `${data}--${createHmac('sha256', key).update(data).digest('hex')}`
}

const verify = (token: string, secrets = [secret], at = now) => verifyName(token, secrets, at)

t.test('given the secret and the name of the published vector', async t => {
  t.test('when it is signed, then the token is the published one', async t => {
    t.equal(signName('room:42', [secret]), known)
  })
  t.test('when the token is verified, then the name comes back', async t => {
    t.strictSame(verify(known), { stream: 'room:42', subject: undefined })
  })
})

t.test('given tokens that Rails writes', async t => {
  const names: [string, unknown][] = [
    ['a plain name', 'room:42'],
    ['metadata without expiry', { _rails: { data: 'room:42', pur: null } }],
    ['metadata with expiry', { _rails: { data: 'room:42', exp: '2026-03-01T12:00:01.000Z', pur: null } }],
    [
      'the older metadata',
      { _rails: { message: Buffer.from('"room:42"').toString('base64'), exp: null, pur: null } },
    ],
  ]
  for (const [what, content] of names) {
    t.test(`when it is ${what}, then the name comes back`, async t => {
      t.equal(verify(foreign(content)).stream, 'room:42')
      t.equal(verify(foreign(content, 'base64url')).stream, 'room:42')
    })
  }
})

t.test('given a token with expiry and subject', async t => {
  const token = signName('room:42', [secret], { expiresIn: '1h', subject: 'user 7' }, now)

  t.test('when it is verified in time, then the subject comes with the name', async t => {
    t.strictSame(verify(token, [secret], now + 3_599_000), { stream: 'room:42', subject: 'user 7' })
  })
  t.test('when the time is over, then it is invalid', async t => {
    t.throws(() => verify(token, [secret], now + 3_600_000), { code: 'PGBUS_ERR_INVALID_SIGNED_NAME' })
  })
  t.test('when the duration is none, then it is a TypeError', async t => {
    for (const expiresIn of [0, -1, Number.NaN, 'soon'])
      t.throws(() => signName('a', [secret], { expiresIn }), { name: 'TypeError' })
  })
})

t.test('given several secrets', async t => {
  t.test('when they rotate, then the first signs and all verify', async t => {
    const old = signName('room:42', ['old'])
    const both = signName('room:42', ['new', 'old'])
    t.equal(both, signName('room:42', ['new']))
    t.equal(verify(old, ['new', 'old']).stream, 'room:42')
    t.equal(verify(both, ['new', 'old']).stream, 'room:42')
    t.throws(() => verify(old, ['new']), { code: 'PGBUS_ERR_INVALID_SIGNED_NAME' })
  })
  t.test('when there is none, then signing and verifying say what to set', async t => {
    for (const use of [() => signName('a', []), () => verify(known, [])])
      t.throws(use, { code: 'PGBUS_ERR_MISSING_SECRET', message: /streams\.secret.*PGBUS_STREAMS_SECRET/ })
  })
})

t.test('given a token that is not good', async t => {
  const [data, mac] = [known.slice(0, -66), known.slice(-64)]
  const bad: [string, string][] = [
    ['empty', ''],
    ['without signature', data],
    ['without data', `--${mac}`],
    ['with one hyphen', `${data}-${mac}`],
    ['with another name', `${Buffer.from('"room:43"').toString('base64url')}--${mac}`],
    ['with a changed signature', known.replace(/.$/, known.endsWith('0') ? '1' : '0')],
    ['with an upper-case signature', `${data}--${mac.toUpperCase()}`],
    ['with something behind', `${known}0`],
    ['of another secret', signName('room:42', ['other'])],
    ['larger than any token', signed('A'.repeat(8_000))],
    ['signed, but no base64', signed('"room:42"')],
    ['signed, but no JSON', signed(Buffer.from('room').toString('base64url'))],
    ['signed, but a number', foreign(42)],
    ['signed, but null', foreign(null)],
    ['signed, but a list', foreign(['room:42'])],
    ['signed, with an empty name', foreign('')],
    ['signed, with U+0000', foreign('a\0')],
    ['signed, without a name', foreign({ sub: 'x' })],
    ['expired at once', foreign({ s: 'room:42', exp: now / 1_000 })],
    ['with an expiry that is text', foreign({ s: 'room:42', exp: '9999999999' })],
    ['with a subject that is no text', foreign({ s: 'room:42', sub: 7 })],
    ['for another purpose', foreign({ _rails: { data: 'room:42', pur: 'login' } })],
    ['expired, from Rails', foreign({ _rails: { data: 'room:42', exp: '2026-03-01T11:59:59Z' } })],
    ['with a date that is none', foreign({ _rails: { data: 'room:42', exp: 'tomorrow' } })],
    ['with a message that is none', foreign({ _rails: { message: '%%%' } })],
  ]
  for (const [what, token] of bad) {
    t.test(`when it is ${what}, then the error never says why`, async t => {
      t.throws(() => verify(token), {
        name: 'InvalidSignedNameError',
        code: 'PGBUS_ERR_INVALID_SIGNED_NAME',
        message: 'invalid signed stream name',
      })
    })
  }
})

t.test('given any name', async t => {
  const names = fc
    .string({ unit: 'grapheme', minLength: 1, maxLength: 60 })
    .filter(name => !name.includes('\0') && Buffer.byteLength(name) <= 255)
  t.test('when it is signed, then it verifies and is safe in a path; any change does not verify', async t => {
    const property = fc.property(names, fc.nat(), fc.option(fc.string()), (name, position, subject) => {
      const token = signName(name, [secret], subject === null ? {} : { subject })
      if (!/^[A-Za-z0-9_-]+$/.test(token)) return false
      if (verify(token).stream !== name) return false
      const at = position % token.length
      const changed = `${token.slice(0, at)}${token[at] === 'a' ? 'b' : 'a'}${token.slice(at + 1)}`
      try {
        verify(changed)
        return false
      } catch {
        return true
      }
    })
    t.doesNotThrow(() => fc.assert(property, { numRuns: 300 }))
  })
})
