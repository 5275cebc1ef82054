import t from 'tap'
import { SerializationError } from '../../lib/core/errors.ts'
import { decodeArguments, readEnvelope, readHeaders, writeEnvelope } from '../../lib/jobs/envelope.ts'

t.test('given a job', async t => {
  const text = writeEnvelope({
    name: 'mail',
    jobId: 'id-1',
    queue: 'default',
    priority: 2,
    args: { when: new Date(0), note: undefined },
    enqueuedAt: new Date('2026-01-15T10:30:00.123Z'),
    scheduledAt: new Date('2026-01-16T10:30:00Z'),
  })

  t.test('when it is written, then it has every key that other clients expect', async t => {
    t.same(JSON.parse(text), {
      job_class: 'mail',
      job_id: 'id-1',
      provider_job_id: null,
      queue_name: 'default',
      priority: 2,
      arguments: [{ when: { $type: 'Date', value: '1970-01-01T00:00:00.000Z' } }],
      executions: 0,
      exception_executions: {},
      locale: 'en',
      timezone: 'UTC',
      enqueued_at: '2026-01-15T10:30:00.123000000Z',
      scheduled_at: '2026-01-16T10:30:00.000000000Z',
    })
  })

  t.test('when it is read, then it is the same job', async t => {
    const envelope = readEnvelope(text)
    t.match(envelope, { name: 'mail', jobId: 'id-1', priority: 2 })
    t.equal(envelope.scheduledAt?.toISOString(), '2026-01-16T10:30:00.000Z')
    t.same(decodeArguments(envelope), { when: new Date(0) })
  })
})

t.test('given messages of other writers', async t => {
  for (const body of [
    null,
    'null',
    '1',
    '"job"',
    '[]',
    '{}',
    '{"job_class":1,"arguments":[]}',
    '{"job_class":"a"}',
  ]) {
    t.test(`when the body is ${body}, then it is no job`, async t => {
      t.throws(() => readEnvelope(body), SerializationError)
    })
  }

  t.test('when keys are missing or odd, then what is there is used', async t => {
    const envelope = readEnvelope(
      '{"job_class":"a","arguments":[],"priority":"high","scheduled_at":"x","more":1}',
    )
    t.same(envelope, { name: 'a', jobId: null, priority: null, scheduledAt: null, rawArguments: [] })
    t.equal(decodeArguments(envelope), null)
  })

  t.test('when there are several arguments, then the error says that a job takes one', async t => {
    t.throws(() => decodeArguments(readEnvelope('{"job_class":"a","arguments":[1,2]}')), {
      message: /has 2 arguments; a job takes one/,
    })
  })

  t.test('when headers are no object, then there are none', async t => {
    t.same(readHeaders(null), {})
    t.same(readHeaders('[1]'), {})
    t.same(readHeaders('{"a":{"$type":"mine"},"__proto__":{"b":1}}'), { a: { $type: 'mine' } })
  })
})
