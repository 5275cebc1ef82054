import type { AddressInfo } from 'node:net'
import { connect, createServer, type Socket } from 'node:net'
import type { TestContext } from './database.ts'

/** A TCP proxy in front of PostgreSQL that misbehaves on demand. */
export interface PgProxy {
  /** The URL given, through the proxy. */
  url: string
  /** Resets every connection that is open now. */
  cut(): void
  /** Swallows everything in both directions, for connections open now and later. */
  blackhole(on: boolean): void
  /** Drops notifications on their way to the client, as a transaction pooler does. */
  deaf(on: boolean): void
  /** Refuses start-up packets that carry `options`, as some poolers do. */
  refuseOptions(on: boolean): void
  connections(): number
}

/** Puts a proxy in front of the server of `url`. Plain connections only (no TLS). */
export async function startPgProxy(t: TestContext, url: string): Promise<PgProxy> {
  const target = new URL(url)
  const pairs = new Set<{ client: Socket; server: Socket }>()
  const mode = { blackhole: false, deaf: false, refuseOptions: false }

  const listener = createServer(client => {
    const server = connect(Number(target.port), target.hostname)
    const pair = { client, server }
    pairs.add(pair)
    const end = () => {
      client.destroy()
      server.destroy()
      pairs.delete(pair)
    }
    for (const socket of [client, server]) socket.on('error', end).on('close', end)
    let first = true
    client.on('data', chunk => {
      if (mode.blackhole) return
      if (first && chunk.readInt32BE(4) === 196_608) {
        first = false
        if (mode.refuseOptions && chunk.includes('options\0')) return refuse(client)
      }
      server.write(chunk)
    })
    const messages = new BackendMessages()
    server.on('data', chunk => {
      if (mode.blackhole) return
      for (const message of messages.push(chunk)) {
        if (mode.deaf && message[0] === 0x41) continue
        client.write(message)
      }
    })
  })
  await new Promise<void>(resolve => listener.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    for (const { client, server } of pairs) {
      client.destroy()
      server.destroy()
    }
    listener.close()
  })
  const proxied = new URL(url)
  proxied.hostname = '127.0.0.1'
  proxied.port = String((listener.address() as AddressInfo).port)
  return {
    url: proxied.toString(),
    cut: () => {
      for (const { client, server } of pairs) {
        client.resetAndDestroy()
        server.destroy()
      }
    },
    blackhole: on => {
      mode.blackhole = on
    },
    deaf: on => {
      mode.deaf = on
    },
    refuseOptions: on => {
      mode.refuseOptions = on
    },
    connections: () => pairs.size,
  }
}

/** Cuts the server's bytes into messages: a type byte, a length, a body. */
class BackendMessages {
  #rest = Buffer.alloc(0)

  push(chunk: Buffer): Buffer[] {
    this.#rest = Buffer.concat([this.#rest, chunk])
    const messages: Buffer[] = []
    while (this.#rest.length >= 5) {
      const length = 1 + this.#rest.readInt32BE(1)
      if (this.#rest.length < length) break
      messages.push(this.#rest.subarray(0, length))
      this.#rest = this.#rest.subarray(length)
    }
    return messages
  }
}

function refuse(client: Socket): void {
  const fields = Buffer.from('SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0')
  const head = Buffer.alloc(5)
  head.write('E')
  head.writeInt32BE(4 + fields.length, 1)
  client.end(Buffer.concat([head, fields]))
}
