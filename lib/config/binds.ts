/** Where a web host listens, as `web.bind` writes it. */
export type Bind =
  /** Port 0: a free one, the same in all workers. */
  | {
      readonly kind: 'tcp'
      readonly tls: boolean
      readonly host: string
      readonly port: number
      readonly backlog: number
    }
  | {
      readonly kind: 'unix'
      readonly path: string
      /** Permissions of the socket file; null: as the umask says. */
      readonly mode: number | null
      readonly backlog: number
      /** A socket file that nobody listens on is removed. */
      readonly unlink: boolean
    }
  /** A socket that listens already, inherited from whoever started the process. */
  | { readonly kind: 'fd'; readonly fd: number }

/** Connections that the kernel keeps for us while all workers are busy. */
export const defaultBacklog = 1024

/** What the address of a Unix socket has room for, on every system. */
const longestPath = 100

/** The bind that a text means, or the rule that it breaks. */
export function parseBind(text: string): Bind | { readonly rule: string } {
  const [, scheme, rest = ''] = /^([a-z]+):\/\/(.*)$/s.exec(text) ?? []
  const [address = '', query = ''] = rest.split('?', 2)
  const options = new URLSearchParams(query)
  switch (scheme) {
    case 'tcp':
    case 'ssl':
      return parseTcp(address, options, scheme === 'ssl')
    case 'unix':
      return parseUnix(address, options)
    case 'fd':
      if (!/^\d+$/.test(address)) return { rule: 'must be a number, as in fd://3' }
      return unknownOption(options, []) ?? { kind: 'fd', fd: Number(address) }
    default:
      return { rule: 'must begin with tcp://, ssl://, unix:// or fd://' }
  }
}

function parseTcp(address: string, options: URLSearchParams, tls: boolean): Bind | { rule: string } {
  const match = /^(?:\[([^\]]+)\]|([^:[\]]+)):(\d+)$/.exec(address)
  const port = Number(match?.[3])
  const host = match?.[1] ?? match?.[2]
  if (host === undefined || port > 65_535)
    return { rule: 'must be host:port, with an IPv6 address in brackets' }
  const backlog = parseBacklog(options)
  if (backlog === undefined) return { rule: 'has a backlog that is no positive integer' }
  return unknownOption(options, ['backlog']) ?? { kind: 'tcp', tls, host, port, backlog }
}

function parseUnix(path: string, options: URLSearchParams): Bind | { rule: string } {
  if (!path.startsWith('/')) return { rule: 'must have an absolute path, as in unix:///run/app.sock' }
  if (Buffer.byteLength(path) > longestPath) return { rule: 'is too long for a Unix socket path' }
  const mode = options.get('mode')
  if (mode !== null && !/^0?[0-7]{3}$/.test(mode))
    return { rule: 'has a mode that is not octal, as in mode=0660' }
  const unlink = options.get('unlink') ?? '1'
  if (unlink !== '0' && unlink !== '1') return { rule: 'has an unlink that is neither 0 nor 1' }
  const backlog = parseBacklog(options)
  if (backlog === undefined) return { rule: 'has a backlog that is no positive integer' }
  return (
    unknownOption(options, ['mode', 'backlog', 'unlink']) ?? {
      kind: 'unix',
      path,
      mode: mode === null ? null : Number.parseInt(mode, 8),
      backlog,
      unlink: unlink === '1',
    }
  )
}

function parseBacklog(options: URLSearchParams): number | undefined {
  const text = options.get('backlog')
  if (text === null) return defaultBacklog
  return /^[1-9]\d{0,5}$/.test(text) ? Number(text) : undefined
}

function unknownOption(options: URLSearchParams, known: readonly string[]): { rule: string } | undefined {
  const unknown = [...options.keys()].find(name => !known.includes(name))
  if (unknown === undefined) return undefined
  return {
    rule: `has no option "${unknown}"${known.length > 0 ? `; there are ${known.join(', ')}` : ''}`,
  }
}
