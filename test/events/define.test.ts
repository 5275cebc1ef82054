import t from 'tap'
import { definedHandlers, defineHandler, queueOfHandler } from '../../lib/events/define.ts'

const handle = () => undefined

t.test('given names of handlers', async t => {
  for (const [name, queue] of [
    ['OrderCreatedHandler', 'order_created_handler'],
    ['HTTPServerHandler', 'http_server_handler'],
    ['Billing::InvoicePaid', 'billing_invoice_paid'],
    ['send-mail', 'send_mail'],
    ['Step2Done', 'step2_done'],
  ] as const) {
    t.equal(queueOfHandler(name), queue, name)
  }
})

t.test('given a handler', async t => {
  t.test('when it is defined, then it says where its events wait', async t => {
    const handler = defineHandler({ name: 'Mailer', on: ['orders.*', 'orders.*'] }, handle)
    t.strictSame(handler, { name: 'Mailer', queue: 'mailer', on: ['orders.*'] })
    t.equal(defineHandler({ name: 'Other', on: 'x', queue: 'Box' }, handle).queue, 'box')
  })

  t.test('when an option is wrong, then that fails, naming handler and option', async t => {
    const refused = (options: object, rule: RegExp) =>
      t.throws(() => defineHandler({ name: 'Wrong', on: 'a', ...options } as never, handle), {
        name: 'TypeError',
        message: rule,
      })
    refused({ on: [] }, /handler "Wrong": on must be a pattern/)
    refused({ on: 'a..b' }, /handler "Wrong": on: a topic pattern is .*, got "a\.\.b"/)
    refused({ on: ['a', '*#'] }, /"\*#"/)
    refused({ on: 7 }, /on must be/)
    refused({ queue: 'a-b' }, /queue must be .*"a-b"/)
    refused({ name: 'x'.repeat(60) }, /queue must be a name of at most 41/)
    refused({ idempotent: 'yes' }, /idempotent must be/)
    refused({ maxRetries: 0 }, /maxRetries/)
    refused({ timeout: 'soon' }, /timeout/)
    refused({ retry: { max: 'x' } }, /retry\.max/)
    refused({ colour: 'red' }, /unknown option "colour"/)
    refused({ name: '' }, /name must be/)
    t.throws(
      () => defineHandler({ name: 'Wrong', on: 'a' }, undefined as never),
      /the handler must be a function/,
    )
    t.notOk(definedHandlers().some(({ name }) => name === 'Wrong'))
  })

  t.test('when its name is taken, then that fails with both places, except by the same code', async t => {
    const twice = () => undefined
    defineHandler({ name: 'Twice', on: 'a' }, twice)
    defineHandler({ name: 'Twice', on: 'b' }, twice)
    t.strictSame(definedHandlers().find(({ name }) => name === 'Twice')?.on, ['b'])
    t.throws(
      () => defineHandler({ name: 'Twice', on: 'a' }, () => 'other'),
      /defined twice: at .*define\.test.* and at .*define\.test/,
    )
  })

  t.test('when it shares a queue, then only if both are idempotent', async t => {
    defineHandler({ name: 'Shared1', on: 'a', queue: 'shared', idempotent: true }, handle)
    defineHandler({ name: 'Shared2', on: 'b', queue: 'SHARED', idempotent: 'transaction' }, handle)
    t.throws(
      () => defineHandler({ name: 'Shared3', on: 'c', queue: 'shared' }, handle),
      /handlers "Shared1" and "Shared3" share queue "shared"; make both idempotent or give each its own queue/,
    )
    defineHandler({ name: 'Alone', on: 'a', queue: 'alone' }, handle)
    t.throws(
      () => defineHandler({ name: 'Second', on: 'a', queue: 'alone', idempotent: true }, handle),
      /share/,
    )
  })
})
