import t from 'tap'
import { freeze } from '../support/freeze.ts'
import { waitFor } from '../support/wait-for.ts'
import { booted, gone, spawnWeb } from './web-host.ts'

t.test('given a host of two workers', async t => {
  const host = spawnWeb(t, {
    app: 'plain',
    args: ['-w', '2', '-p', '0'],
    env: { PGBUS_WEB_CHECK_INTERVAL: '500ms', PGBUS_WEB_WORKER_TIMEOUT: '3s' },
  })
  const url = await booted(host, 2)
  const workers = () => [1, 2].map(index => host.ready().findLast(worker => worker.index === index)!.pid)
  const serves = async () => (await fetch(url, { headers: { connection: 'close' } })).status === 200
  const [first, second] = workers() as [number, number]

  t.test('when all of it is stopped for longer than the timeout, then nobody is killed', async t => {
    const pids = [...workers(), host.pid]
    const thaw = pids.map(pid => freeze(pid))
    // The one wait that nothing announces: it must exceed the timeout and the step of the clock.
    await new Promise(resolve => setTimeout(resolve, 6_500))
    // The primary looks before the workers can say anything.
    thaw.pop()!()
    await host.waitForOutput(/this process stood still for/)
    for (const go of thaw) go()
    await waitFor(serves)
    await waitFor(serves)
    t.same(workers(), [first, second])
    t.notMatch(host.output(), /failed to check in/)
  })

  t.test('when a worker is stopped, then it is killed and replaced, and the other one serves', async t => {
    freeze(first)
    await host.waitForOutput(/worker 1 \(pid \d+\) failed to check in within 3s/)
    await gone([first])
    await waitFor(() => workers()[0] !== first)
    await waitFor(serves)
    t.match(host.output(), /worker 1 .* ended after .*: no check-in within 3s \(web\.workerTimeout\)/)
    t.equal(workers()[1], second)
  })

  t.test('when the event loop of a worker is blocked, then it is killed and replaced', async t => {
    const before = workers()
    await fetch(`${url}/block`, { method: 'POST' }).catch(() => undefined)
    await waitFor(() => (host.output().match(/failed to check in/g) ?? []).length === 2)
    await waitFor(() => workers().filter(pid => !before.includes(pid)).length === 1)
    await waitFor(serves)
    host.signal('SIGTERM')
    t.same(await host.exited, { code: 0, signal: null })
    t.same(host.survivors(), [])
  })
})
