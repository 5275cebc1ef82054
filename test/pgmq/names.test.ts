import t from 'tap'
import { InvalidQueueNameError } from '../../lib/core/errors.ts'
import {
  deadLetterName,
  failedName,
  insertChannel,
  logicalOf,
  physicalName,
  targetQueue,
  validateQueueName,
  workerTables,
} from '../../lib/pgmq/names.ts'
import { claim, queueTable } from '../../lib/pgmq/statements.ts'

const plain = { queuePrefix: 'pgbus', priority: { levels: null, default: 1 } }
const levelled = { queuePrefix: 'pgbus', priority: { levels: 3, default: 1 } }

t.test('given a queue name', async t => {
  t.test('when it is plain, then prefix and name make the physical name', async t => {
    t.equal(physicalName(plain, 'default'), 'pgbus_default')
    t.equal(physicalName(plain, 'Default'), 'pgbus_default', 'upper case is lowered')
    t.equal(physicalName({ ...plain, queuePrefix: 'App' }, 'x'), 'app_x')
    t.equal(
      physicalName(plain, 'pgbus_x'),
      'pgbus_pgbus_x',
      'a logical name is never taken for a physical one',
    )
    t.equal(deadLetterName(plain, 'default'), 'pgbus_default_dlq')
    t.equal(insertChannel('pgbus_default'), 'pgmq.q_pgbus_default.INSERT')
  })

  t.test('when it is as long as it may be, then everything built from it fits PostgreSQL', async t => {
    const name = 'a'.repeat(37)
    t.equal(deadLetterName(plain, name).length, 47)
    t.ok(Buffer.byteLength(insertChannel(deadLetterName(plain, name))) <= 63)
  })

  t.test('when it is one character longer, then the error tells both lengths', async t => {
    t.throws(() => physicalName(plain, 'a'.repeat(38)), {
      code: 'PGBUS_ERR_INVALID_QUEUE_NAME',
      message: /\(48 characters, the limit is 47\); shorten it to 37 characters/,
    })
    t.throws(() => queueTable('a'.repeat(48)), InvalidQueueNameError)
    t.throws(() => claim('ü'.repeat(24), 1, 1), InvalidQueueNameError, 'bytes count, not characters')
  })

  t.test('when it holds anything but letters, digits and underscores, then it is refused', async t => {
    const names = [
      '',
      ' ',
      'a b',
      'a;b',
      "a'b",
      'a"b',
      'a-b',
      'a.b',
      'a:b',
      'ä',
      'a\0b',
      'a\nb',
      '$a',
      'a--b',
      "x'; drop table pgmq.meta; --",
      '"; drop schema public cascade; --',
      '../x',
      'x\u2028y',
      'x_dlq',
    ]
    for (const name of names)
      t.throws(() => physicalName(plain, name), InvalidQueueNameError, encodeURIComponent(name))
    for (const name of [undefined, null, 7, {}, ['a']] as unknown as string[]) {
      t.throws(() => validateQueueName(plain, name), InvalidQueueNameError)
    }
    t.throws(() => physicalName(plain, 'mail-out'), { message: /did you mean "mail_out"\?/ })
  })
})

t.test('given three priority levels', async t => {
  t.test('when messages are targeted, then each goes to its own level', async t => {
    const target = (priority?: number | null) => targetQueue(levelled, 'mail', priority)
    t.equal(target(0), 'pgbus_mail_p0', '0 is the most urgent, not "none"')
    t.equal(target(2), 'pgbus_mail_p2')
    t.equal(target(), 'pgbus_mail_p1', 'none: the default')
    t.equal(target(null), 'pgbus_mail_p1')
    t.equal(target(99), 'pgbus_mail_p2', 'clamped')
    t.equal(target(-4), 'pgbus_mail_p0', 'clamped')
    t.equal(targetQueue({ ...levelled, priority: { levels: 3, default: 9 } }, 'mail'), 'pgbus_mail_p2')
  })

  t.test('when a worker reads queues, then all levels of one queue come before the next queue', async t => {
    t.strictSame(workerTables(levelled, ['mail', 'bulk', 'mail']), [
      'pgbus_mail_p0',
      'pgbus_mail_p1',
      'pgbus_mail_p2',
      'pgbus_bulk_p0',
      'pgbus_bulk_p1',
      'pgbus_bulk_p2',
    ])
  })

  t.test(
    'when a name ends like a level, then it is refused; without priorities it is a name like any other',
    async t => {
      t.throws(() => physicalName(levelled, 'mail_p1'), InvalidQueueNameError)
      t.equal(physicalName(plain, 'mail_p1'), 'pgbus_mail_p1')
    },
  )

  t.test(
    'when a name is led back, then levels share the logical name but not the name of failures',
    async t => {
      t.equal(logicalOf(levelled, 'pgbus_mail_p2'), 'mail')
      t.equal(logicalOf(plain, 'pgbus_mail_p2'), 'mail_p2')
      t.equal(logicalOf(levelled, 'pgbus_mail_dlq'), 'mail')
      t.equal(logicalOf(levelled, 'foreign'), 'foreign')
      t.equal(failedName(levelled, 'pgbus_mail_p2'), 'mail_p2')
    },
  )
})

t.test('given one level', async t => {
  t.test('when messages are targeted, then priorities are off', async t => {
    const rules = { queuePrefix: 'pgbus', priority: { levels: 1, default: 1 } }
    t.equal(targetQueue(rules, 'mail', 0), 'pgbus_mail')
    t.strictSame(workerTables(rules, ['mail']), ['pgbus_mail'])
  })
})
