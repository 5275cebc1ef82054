import type { ResolvedConfig } from '../../config/options.ts'

/** What a generation of workers is started from. */
export interface Release {
  /** 0 for the first, one more for each restart. */
  readonly phase: number
  readonly config: ResolvedConfig
  /** Program of a worker. */
  readonly entry: string
  /** Working directory of a worker. */
  readonly directory: string
  /** Added to the environment of a worker. */
  readonly env: Readonly<Record<string, string>>
}
