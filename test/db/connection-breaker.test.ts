import t from 'tap'
import { ConnectionCircuitOpenError } from '../../lib/core/errors.ts'
import { ConnectionBreaker } from '../../lib/db/connection-breaker.ts'
import { quiet } from '../support/quiet-log.ts'

const refused = () => Object.assign(new Error('refused'), { code: 'ECONNREFUSED' })

const setup = () => {
  let now = 0
  const breaker = new ConnectionBreaker({ log: quiet, now: () => now })
  let asked = 0
  const ask = (error?: Error) =>
    breaker
      .guard(async () => {
        asked += 1
        if (error) throw error
        return 'answer'
      })
      .catch((thrown: Error) => thrown)
  const fail = async (times: number) => {
    for (let n = 0; n < times; n += 1) await ask(refused())
  }
  return {
    breaker,
    ask,
    fail,
    asked: () => asked,
    pass: (ms: number) => {
      now += ms
    },
  }
}

t.test('given a database that is away', async t => {
  t.test(
    'when it failed five times in a row, then it is left alone for a second, then asked once',
    async t => {
      const { ask, fail, asked, pass } = setup()
      await fail(4)
      t.equal(await ask(), 'answer', 'four are none in a row with an answer between')
      await fail(5)
      t.equal(asked(), 10)
      const open = await ask()
      t.ok(open instanceof ConnectionCircuitOpenError)
      t.equal((open as ConnectionCircuitOpenError).retryInMs, 1_000)
      pass(999)
      await ask()
      t.equal(asked(), 10)
      pass(1)
      t.equal(await ask(), 'answer')
      t.equal(await ask(), 'answer')
    },
  )

  t.test('when the one that is let through fails, then the rest doubles, up to a minute', async t => {
    const { ask, fail, pass } = setup()
    await fail(5)
    const rests: number[] = []
    for (let n = 0; n < 8; n += 1) {
      const open = (await ask()) as ConnectionCircuitOpenError
      rests.push(open.retryInMs)
      pass(open.retryInMs)
      await ask(refused())
    }
    t.same(rests, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000])
  })

  t.test(
    'when the one that is let through fails for another reason, then it is not half-open for ever',
    async t => {
      const { ask, fail, pass } = setup()
      await fail(5)
      pass(1_000)
      await ask(new Error('syntax'))
      pass(2_000)
      t.equal(await ask(), 'answer')
      t.equal(await ask(), 'answer')
    },
  )

  t.test('when one is let through, then no second one is, until it has an answer', async t => {
    const { breaker, ask, fail, pass } = setup()
    await fail(5)
    pass(1_000)
    let answer: () => void = () => undefined
    const probe = breaker.guard(
      () =>
        new Promise<void>(resolve => {
          answer = resolve
        }),
    )
    t.ok((await ask()) instanceof ConnectionCircuitOpenError)
    answer()
    await probe
    t.equal(await ask(), 'answer')
  })

  t.test('when what was asked before answers late, then that changes nothing', async t => {
    const { breaker, ask, fail } = setup()
    let answer: () => void = () => undefined
    const straggler = breaker.guard(
      () =>
        new Promise<void>(resolve => {
          answer = resolve
        }),
    )
    await fail(5)
    answer()
    await straggler
    t.ok((await ask()) instanceof ConnectionCircuitOpenError)
  })
})

t.test('given errors that say nothing about the connection', async t => {
  const { ask, asked } = setup()
  for (let n = 0; n < 20; n += 1) await ask(new Error('syntax'))
  t.equal(asked(), 20)
})
