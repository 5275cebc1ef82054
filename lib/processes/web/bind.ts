import type { AddressInfo } from 'node:net'
import { createServer } from 'node:net'
import { AppModuleError, BootError } from '../../core/errors.ts'

/** Where the web host listens. Port 0: a free one, the same in all workers. */
export interface Bind {
  readonly host: string
  readonly port: number
}

/** Connections that the kernel keeps for us while all workers are busy. */
export const backlog = 1024

export function formatBind({ host, port }: Bind): string {
  return `http://${host.includes(':') ? `[${host}]` : host}:${port}`
}

/** The URL of a listening server. */
export function formatAddress(address: AddressInfo | string | null): string {
  if (address === null) return 'nowhere'
  if (typeof address === 'string') return address
  return formatBind({ host: address.address, port: address.port })
}

/**
 * Listens once and stops again, so that an address that cannot be had is known before any worker is started.
 * @throws BootError with the address and the reason in one line.
 */
export function probeBind(bind: Bind): Promise<void> {
  // A free port is found by whoever listens.
  if (bind.port === 0) return Promise.resolve()
  return new Promise((resolve, reject) => {
    const server = createServer()
    server.once('error', error => reject(toListenError(error, bind)))
    server.listen({ ...bind, exclusive: true }, () => server.close(() => resolve()))
  })
}

const reasons: Record<string, string> = {
  EADDRINUSE: 'the address is in use by another process',
  EACCES: 'permission denied (ports below 1024 are reserved)',
  EPERM: 'permission denied',
  EADDRNOTAVAIL: 'this machine has no such address',
  ENOTFOUND: 'no such host name',
}

/** What a failed `listen` means for a person. An error that is about something else is returned unchanged. */
export function toListenError(error: unknown, bind: Bind): unknown {
  const code = (error as NodeJS.ErrnoException | null)?.code ?? ''
  if (code === 'ERR_SERVER_ALREADY_LISTEN' || code === 'FST_ERR_REOPENED_SERVER')
    return alreadyListening(error)
  const reason = reasons[code]
  if (reason === undefined) return error
  return new BootError(`cannot listen on ${formatBind(bind)}: ${reason} (${code})`, { cause: error })
}

export function alreadyListening(cause?: unknown): AppModuleError {
  return new AppModuleError(
    'the application is already listening: remove its listen() call, pgbus-web binds the address',
    { cause },
  )
}
