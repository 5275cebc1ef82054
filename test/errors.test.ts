import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import * as errors from '../lib/core/errors.ts'
import * as surface from '../lib/index.ts'

const page = readFileSync(fileURLToPath(new URL('../../docs/errors.md', import.meta.url)), 'utf8')
const classes = Object.entries(errors).filter(([, value]) => typeof value === 'function') as [
  string,
  new (message: string) => Error & { code: string },
][]

t.test('given every error class', async t => {
  const codes = new Map<string, string>()

  for (const [name, ErrorClass] of classes) {
    const error = new ErrorClass('what, with which value, what to do')

    t.test(
      `when ${name} is thrown, then it has its own name and code, and is documented and exported`,
      async t => {
        t.equal(error.name, name)
        t.match(error.code, /^PGBUS_ERR[A-Z_]*$/)
        t.notOk(codes.has(error.code), `${error.code} is also the code of ${codes.get(error.code)}`)
        codes.set(error.code, name)
        t.ok(page.includes(`| \`${name}\` | \`${error.code}\` |`), 'docs/errors.md has a row for it')
        t.equal((surface as Record<string, unknown>)[name], ErrorClass, 'it is exported')
      },
    )
  }

  t.test('when the page names a class, then the class exists', async t => {
    for (const [, name] of page.matchAll(/^\| `(\w+)` \|/gm)) t.ok(name && name in errors, `${name} exists`)
  })
})

t.test('given an error of another copy of the package', async t => {
  const copy = new errors.PgbusError('from here')

  t.test('when it is checked with instanceof, then the brand decides', async t => {
    const foreign = Object.assign(new Error('from there'), { [Symbol.for('pgbus.error')]: true })
    t.ok(copy instanceof errors.PgbusError)
    t.ok(foreign instanceof errors.PgbusError)
    t.notOk(foreign instanceof errors.SerializationError)
    t.notOk(new Error('other') instanceof errors.PgbusError)
  })

  t.test('when it wraps another, then the cause is kept', async t => {
    const cause = new Error('why')
    t.equal(new errors.BootError('what', { cause }).cause, cause)
  })
})
