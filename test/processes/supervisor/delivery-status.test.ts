import t from 'tap'
import { DeliveryStatus, silenceMs } from '../../../lib/processes/supervisor/delivery-status.ts'

const setup = () => {
  const changes: boolean[] = []
  let timer: { ms: number; fn: () => void } | undefined
  const status = new DeliveryStatus(
    delivering => changes.push(delivering),
    (ms, fn) => {
      timer = { ms, fn }
      return () => {
        timer = undefined
      }
    },
  )
  return { status, changes, timer: () => timer }
}

t.test('given a child', async t => {
  t.test('when it has heard nothing yet, then it takes notifications for lost', async t => {
    const { status } = setup()
    t.equal(status.delivering, false)
  })

  t.test('when it hears the same again, then nothing changes but the deadline', async t => {
    const { status, changes, timer } = setup()
    status.heard(true)
    const first = timer()
    status.heard(true)
    t.strictSame(changes, [true])
    t.not(timer(), first)
    t.equal(timer()?.ms, silenceMs)
  })

  t.test('when its supervisor falls silent, then it polls', async t => {
    const { status, changes, timer } = setup()
    status.heard(true)
    timer()?.fn()
    t.strictSame(changes, [true, false])
  })

  t.test('when its supervisor is gone, then it polls at once and no deadline is left', async t => {
    const { status, changes, timer } = setup()
    status.heard(true)
    status.lost()
    t.strictSame(changes, [true, false])
    t.equal(timer(), undefined)
  })
})
