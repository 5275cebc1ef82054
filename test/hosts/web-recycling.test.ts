import t from 'tap'
import { waitFor } from '../support/wait-for.ts'
import { booted, spawnWeb } from './web-host.ts'

t.test(
  'given workers that are replaced after some requests, when requests go on, then none fails',
  async t => {
    const host = spawnWeb(t, {
      app: 'plain',
      args: ['-w', '2', '-p', '0'],
      env: { PGBUS_WEB_CHECK_INTERVAL: '200ms', PGBUS_WEB_RECYCLE_MAX_REQUESTS: '30' },
    })
    const url = await booted(host, 2)
    const failures: unknown[] = []
    let going = true
    const clients = Array.from({ length: 4 }, async () => {
      while (going) {
        // Connections are kept.
        const answer = await fetch(url).catch((error: Error) => error)
        if (answer instanceof Error) {
          failures.push(answer)
          continue
        }
        await answer.text()
        if (answer.status !== 200) failures.push(answer.status)
      }
    })
    await waitFor(() => new Set(host.ready().map(({ pid }) => pid)).size === 4, {
      timeout: 60_000,
      message: `two more workers\n${host.output()}`,
    })
    await waitFor(() => (host.output().match(/is gone: exited with code 0/g) ?? []).length === 2, {
      timeout: 60_000,
    })
    going = false
    await Promise.all(clients)
    t.same(failures, [])
    t.match(host.output(), /worker 1 \(pid \d+\) has done enough: max_requests: \d+ requests/)
    host.signal('SIGTERM')
    t.same(await host.exited, { code: 0, signal: null })
    t.same(host.survivors(), [])
  },
)
