import type { LoadedConfig } from '../config/load.ts'
import type { Pgbus } from '../pgbus.ts'

export type CheckStatus = 'ok' | 'warn' | 'fail'

export interface Finding {
  status: CheckStatus
  /** For a person, on one line. */
  detail: string
}

export interface Subject {
  pgbus: Pgbus
  loaded: Pick<LoadedConfig, 'config' | 'file' | 'warnings'>
  production: boolean
}

export interface Check {
  /** Never changes: programs look for it. */
  readonly name: string
  /** What an error means. Default: fail. */
  readonly onError?: CheckStatus
  examine(subject: Subject): Finding | Promise<Finding>
}

export function ok(detail: string): Finding {
  return { status: 'ok', detail }
}

export function warn(detail: string): Finding {
  return { status: 'warn', detail }
}

export function fail(detail: string): Finding {
  return { status: 'fail', detail }
}
