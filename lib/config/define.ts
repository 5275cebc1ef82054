import type { PgbusConfig } from './options.ts'

/** The configuration itself; gives editors the types. */
export function defineConfig(config: PgbusConfig): PgbusConfig {
  return config
}
