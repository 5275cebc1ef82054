import t from 'tap'
import { deadLetterText } from '../../lib/jobs/dead-letter.ts'
import { errorRecord, reportableError } from '../../lib/jobs/failures.ts'

t.test('given whatever can be thrown', async t => {
  const cyclic = new Error('outer')
  cyclic.cause = new Error('inner', { cause: cyclic })
  const cases: [name: string, thrown: unknown, errorClass: string, message: string | RegExp][] = [
    ['undefined', undefined, 'Error', 'thrown value: undefined'],
    ['null', null, 'Error', 'thrown value: null'],
    ['0', 0, 'Error', 'thrown value: 0'],
    ['an empty string', '', 'Error', 'thrown value: an empty string'],
    ['a string', 'no such order', 'Error', 'no such order'],
    ['a symbol', Symbol('s'), 'Error', 'thrown value: Symbol(s)'],
    ['a frozen object', Object.freeze({ code: 7 }), 'Error', 'thrown value: { code: 7 }'],
    ['an object with a message', { message: 'from afar' }, 'Error', 'from afar'],
    ['an object without prototype', Object.create(null), 'Error', /^thrown value: /],
    [
      'a message that throws',
      {
        get message() {
          throw new Error('no')
        },
      },
      'Error',
      '[unreadable error]',
    ],
    [
      'a proxy that throws',
      new Proxy(
        {},
        {
          get: () => {
            throw new Error('no')
          },
          getPrototypeOf: () => {
            throw new Error('no')
          },
        },
      ),
      'Error',
      '[unreadable error]',
    ],
    ['an error', new TypeError('bad'), 'TypeError', 'bad'],
    ['an error without message', new RangeError(), 'RangeError', ''],
    ['a cyclic cause', cyclic, 'Error', 'outer'],
    ['text with U+0000', new Error('a\0b\uD800'), 'Error', 'a\uFFFDb\uFFFD'],
  ]
  for (const [name, thrown, errorClass, message] of cases) {
    t.test(`when ${name} is thrown, then its record is readable and it can be reported`, async t => {
      const record = errorRecord(thrown)
      t.equal(record.errorClass, errorClass)
      t.match(record.errorMessage, message)
      const error = reportableError(thrown, record)
      t.ok(error instanceof Error)
      t.match(error.message, typeof message === 'string' ? message.replace('\uFFFDb\uFFFD', '') : message)
    })
  }

  t.test('when an error has causes, then class, message and place of each are kept', async t => {
    const { backtrace } = errorRecord(
      new Error('outer', { cause: new TypeError('inner', { cause: 'root' }) }),
    )
    t.match(backtrace, /^\s+at .*failures\.test/)
    t.match(backtrace, /\ncaused by: TypeError: inner\n\s+at /)
    t.match(backtrace, /\ncaused by: Error: root$/)
  })

  t.test('when an error is huge, then its record is small', async t => {
    const parts = Array.from({ length: 1_000 }, (_, i) => new Error(`part ${i} ${'x'.repeat(10_000)}`))
    let chained = new Error('end')
    for (let i = 0; i < 100; i += 1)
      chained = new Error(`link ${i} ${'y'.repeat(100_000)}`, { cause: chained })
    const wide = new Error('short')
    wide.stack = `Error: short\n${`    at ${'z'.repeat(100_000)}\n`.repeat(100)}`
    wide.name = 'N'.repeat(1_000)
    for (const thrown of ['x'.repeat(5_000_000), new AggregateError(parts, 'many'), chained, wide]) {
      const record = errorRecord(thrown)
      t.ok(record.errorMessage.length <= 10_000)
      t.ok(record.errorClass.length <= 255)
      t.ok((record.backtrace ?? '').length < 60_000, `${record.backtrace?.length}`)
      const error = reportableError(thrown, record)
      t.ok((error.stack ?? '').length < 80_000)
      t.equal(error.cause, undefined, 'nothing hangs on what a logger gets')
    }
  })

  t.test('when an error is well-behaved, then reporters get the very one', async t => {
    const error = new Error('outer', { cause: new Error('inner') })
    t.equal(reportableError(error, errorRecord(error)), error)
    const frozen = Object.freeze(new Error('frozen'))
    t.not(reportableError(frozen, errorRecord(frozen)), frozen, 'loggers write on what they print')
  })
})

t.test('given a message to bury', async t => {
  t.test(
    'when its error is long, then the header has its first thousand characters, well-formed',
    async t => {
      const errorMessage = `${'x'.repeat(999)}😀`
      const text = deadLetterText(
        'app_default',
        { msgId: 7, readCount: 5 },
        { errorClass: 'Error', errorMessage, backtrace: null },
        new Date(0),
      )
      t.same(JSON.parse(text), {
        queue: 'app_default',
        msg_id: 7,
        read_ct: 5,
        error_class: 'Error',
        error_message: `${'x'.repeat(999)}\uFFFD`,
        failed_at: '1970-01-01T00:00:00.000Z',
      })
    },
  )

  t.test('when there is no error, then the header has none', async t => {
    const text = deadLetterText('app_default', { msgId: 7, readCount: 6 }, null, new Date(0))
    t.notOk('error_class' in JSON.parse(text))
  })
})
