import { lstatSync, unlinkSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { connect, createServer } from 'node:net'
import { type Bind, defaultBacklog, parseBind } from '../../config/binds.ts'
import type { ResolvedConfig } from '../../config/options.ts'
import { AppModuleError, BootError } from '../../core/errors.ts'

export type { Bind } from '../../config/binds.ts'

/** Where this configuration listens: `web.bind`, or `web.host` and `web.port`. */
export function bindsOf({ bind, host, port }: ResolvedConfig['web']): Bind[] {
  if (bind.length === 0) return [{ kind: 'tcp', tls: false, host, port, backlog: defaultBacklog }]
  return bind.map(text => {
    const parsed = parseBind(text)
    if ('rule' in parsed) throw new BootError(`web.bind ${text} ${parsed.rule}`)
    return parsed
  })
}

export function formatBind(bind: Bind): string {
  switch (bind.kind) {
    case 'tcp': {
      const { tls, host, port } = bind
      return `${tls ? 'https' : 'http'}://${host.includes(':') ? `[${host}]` : host}:${port}`
    }
    case 'unix':
      return `unix://${bind.path}`
    case 'fd':
      return `fd://${bind.fd}`
  }
}

/** The URL of a listening server. */
export function formatAddress(address: AddressInfo | string | null, tls = false): string {
  if (address === null) return 'nowhere'
  if (typeof address === 'string') return `unix://${address}`
  return formatBind({ kind: 'tcp', tls, host: address.address, port: address.port, backlog: defaultBacklog })
}

/** What `listen` of a server is given. */
export function listenOptions(
  bind: Bind,
): { host: string; port: number; backlog: number } | { path: string; backlog: number } | { fd: number } {
  switch (bind.kind) {
    case 'tcp':
      return { host: bind.host, port: bind.port, backlog: bind.backlog }
    case 'unix':
      return { path: bind.path, backlog: bind.backlog }
    case 'fd':
      return { fd: bind.fd }
  }
}

/**
 * Listens once and stops again, so that an address that cannot be had is known before any worker is started. The
 * socket file of a process that is gone is removed; one that somebody listens on is never taken.
 * @throws BootError with the address and the reason in one line.
 */
export async function probeBind(bind: Bind): Promise<void> {
  if (bind.kind === 'fd') return
  // A free port is found by whoever listens.
  if (bind.kind === 'tcp' && bind.port === 0) return
  if (bind.kind === 'unix') {
    const state = await stateOfSocket(bind.path)
    if (state === 'live') throw inUse(bind)
    if (state === 'stale' && !bind.unlink)
      throw new BootError(
        `cannot listen on ${formatBind(bind)}: the file is there already, and unlink=0 keeps it`,
      )
    if (state === 'stale') removeFile(bind.path)
  }
  await new Promise<void>((resolve, reject) => {
    const server = createServer()
    server.once('error', error => reject(toListenError(error, bind)))
    server.listen({ ...listenOptions(bind), exclusive: true }, () => server.close(() => resolve()))
  })
}

/** Only a socket that refuses connections is left over from a process that is gone; other files are not ours. */
function stateOfSocket(path: string): Promise<'absent' | 'stale' | 'live' | 'unknown'> {
  return new Promise(resolve => {
    const socket = connect(path)
    socket.once('connect', () => {
      socket.destroy()
      resolve('live')
    })
    socket.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') resolve('absent')
      else resolve(error.code === 'ECONNREFUSED' && isSocket(path) ? 'stale' : 'unknown')
    })
  })
}

function isSocket(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false })?.isSocket() ?? false
}

function removeFile(path: string): void {
  try {
    unlinkSync(path)
  } catch {
    // Removed meanwhile, or not to be removed: then listening says why.
  }
}

function inUse(bind: Bind): BootError {
  return new BootError(`cannot listen on ${formatBind(bind)}: ${reasons.EADDRINUSE} (EADDRINUSE)`)
}

const reasons: Record<string, string> = {
  EADDRINUSE: 'the address is in use by another process',
  EACCES: 'permission denied (ports below 1024 are reserved)',
  EPERM: 'permission denied',
  EADDRNOTAVAIL: 'this machine has no such address',
  ENOTFOUND: 'no such host name',
  ENOENT: 'the folder does not exist',
  EBADF: 'no socket was inherited under this number',
  EINVAL: 'what was inherited under this number is no socket that listens',
}

/** What a failed `listen` means for a person. An error that is about something else is returned unchanged. */
export function toListenError(error: unknown, bind: Bind): unknown {
  const code = (error as NodeJS.ErrnoException | null)?.code ?? ''
  if (code === 'ERR_SERVER_ALREADY_LISTEN' || code === 'FST_ERR_REOPENED_SERVER')
    return alreadyListening(error)
  const reason = bind.kind === 'unix' && code === 'EACCES' ? 'permission denied' : reasons[code]
  if (reason === undefined) return error
  return new BootError(`cannot listen on ${formatBind(bind)}: ${reason} (${code})`, { cause: error })
}

export function alreadyListening(cause?: unknown): AppModuleError {
  return new AppModuleError(
    'the application is already listening: remove its listen() call, pgbus-web binds the address',
    { cause },
  )
}
