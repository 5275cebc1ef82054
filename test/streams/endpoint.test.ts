import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import t from 'tap'
import { deferred } from '../../lib/core/deferred.ts'
import { StreamsEndpoint } from '../../lib/streams/endpoint.ts'
import type { Streamer, Subscription } from '../../lib/streams/streamer.ts'
import type { Streams } from '../../lib/streams/streams.ts'
import { openSse } from '../support/sse-client.ts'
import { waitFor } from '../support/wait-for.ts'

t.test(
  'given a limit of one connection, and ten clients that come while the streamer is still being made',
  async t => {
    const made = deferred<Streamer>()
    const streamer = {
      size: 0,
      isDraining: false,
      connect: ({ sink }: Subscription) => {
        streamer.size += 1
        sink.write(Buffer.from(': open\n\n'), () => undefined)
      },
    }
    let waiting = 0
    const streams = {
      isClosed: false,
      maxConnections: 1,
      verify: () => ({ stream: 'room', subject: undefined }),
      streamer: () => {
        waiting += 1
        return made.promise
      },
    } as unknown as Streams
    const endpoint = new StreamsEndpoint({ streams, report: (error: unknown) => t.error(error) })
    const server = createServer((request, response) => {
      void endpoint.handle({ request, response, original: request, token: 'signed' })
    })
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    t.teardown(() => {
      server.closeAllConnections()
      server.close()
    })

    t.test('when it is there, then one of them is let in', async t => {
      const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`
      const clients = Promise.all(Array.from({ length: 10 }, () => openSse(url)))
      await waitFor(() => waiting === 10)
      made.resolve(streamer as unknown as Streamer)
      const statuses = (await clients).map(({ status }) => status).sort()
      t.strictSame(statuses, [200, ...Array(9).fill(503)])
      t.equal(streamer.size, 1)
    })
  },
)
