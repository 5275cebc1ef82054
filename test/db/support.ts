import { connect, createServer, type Server, type Socket } from 'node:net'
import type { Logger } from '../../lib/core/log.ts'
import { createReport, type ErrorContext, type Report } from '../../lib/core/report.ts'

export interface RecordedLog {
  log: Logger
  report: Report
  /** `level message`, in order. */
  lines: string[]
  /** What reached the error reporters. */
  reported: { error: Error; context: ErrorContext }[]
}

/** A logger that keeps its lines, and a report that keeps its errors. */
export function recordLog(): RecordedLog {
  const lines: string[] = []
  const reported: RecordedLog['reported'] = []
  const write =
    (level: string) =>
    (fields: object | string, message?: string): void => {
      lines.push(`${level} ${typeof fields === 'string' ? fields : message}`)
    }
  const log: Logger = {
    debug: write('debug'),
    info: write('info'),
    warn: write('warn'),
    error: write('error'),
    child: () => log,
  }
  const silent: Logger = { ...log, error: () => undefined, child: () => silent }
  const report = createReport(silent, [(error, context) => void reported.push({ error, context })])
  return { log, report, lines, reported }
}

/** How a {@link PgProxy} treats what the server sends. */
export type ProxyMode =
  /** Everything passes. */
  | 'direct'
  /** Notifications are dropped. */
  | 'deaf'
  /** As a pooler in transaction mode: notifications pass only while a statement is running. */
  | 'pooler'
  /** Nothing passes. */
  | 'frozen'

export interface PgProxy {
  url: string
  mode: ProxyMode
  /** Text of each simple query, in the order in which clients sent them. */
  statements: string[]
  /** Called with each such text before the server gets it; `cut` ends that client's connection instead. */
  onStatement: ((text: string, cut: () => void) => void) | undefined
  /** Connections made so far. */
  connections: number
  /** Ends all connections. */
  cut(): void
  close(): Promise<void>
}

/** A TCP proxy that understands enough of PostgreSQL's protocol to lose the right messages. */
export async function startPgProxy(target: string): Promise<PgProxy> {
  const { hostname, port } = new URL(target)
  const sockets = new Set<Socket>()
  const server: Server = createServer(client => {
    proxy.connections += 1
    const upstream = connect(Number(port), hostname)
    let running = 1
    let seenStartup = false
    const cut = () => {
      client.destroy()
      upstream.destroy()
    }
    for (const socket of [client, upstream]) {
      sockets.add(socket)
      socket.on('error', cut)
      socket.on('close', () => {
        sockets.delete(socket)
        cut()
      })
    }
    const fromClient = cutMessages(() => seenStartup)
    client.on('data', chunk => {
      for (const message of fromClient(chunk)) {
        if (!seenStartup) seenStartup = true
        else if (message[0] === 0x51) {
          running += 1
          const text = message.toString('utf8', 5, message.length - 1)
          proxy.statements.push(text)
          proxy.onStatement?.(text, cut)
        }
        if (!upstream.destroyed) upstream.write(message)
      }
    })
    const fromServer = cutMessages(() => true)
    upstream.on('data', chunk => {
      for (const message of fromServer(chunk)) {
        const type = String.fromCharCode(message[0]!)
        if (type === 'Z') running -= 1
        if (proxy.mode === 'frozen') continue
        if (type === 'A' && (proxy.mode === 'deaf' || (proxy.mode === 'pooler' && running === 0))) continue
        if (!client.destroyed) client.write(message)
      }
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const url = new URL(target)
  url.hostname = '127.0.0.1'
  url.port = String((server.address() as { port: number }).port)
  const proxy: PgProxy = {
    url: url.toString(),
    mode: 'direct',
    statements: [],
    onStatement: undefined,
    connections: 0,
    cut: () => {
      for (const socket of sockets) socket.destroy()
    },
    close: () => {
      proxy.cut()
      return new Promise(resolve => server.close(() => resolve()))
    },
  }
  return proxy
}

/** Splits bytes into protocol messages; before `typed`, a message has no type byte. */
function cutMessages(typed: () => boolean): (chunk: Buffer) => Generator<Buffer> {
  let rest: Buffer = Buffer.alloc(0)
  return function* (chunk) {
    rest = Buffer.concat([rest, chunk])
    for (;;) {
      const head = typed() ? 1 : 0
      if (rest.length < head + 4) return
      const length = head + rest.readUInt32BE(head)
      if (rest.length < length) return
      const message = rest.subarray(0, length)
      rest = rest.subarray(length)
      yield message
    }
  }
}
