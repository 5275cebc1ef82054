import { fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { fromPortable } from '../../config/portable.ts'
import type { Source } from '../../config/resolve.ts'
import { BootError, type ConfigIssue, ConfigurationError } from '../../core/errors.ts'
import { withDeadline } from '../../core/sleep.ts'
import type { Setup, SetupOptions } from './setup.ts'

/** What is asked of the process that reads. */
export interface ReloadQuestion {
  options: SetupOptions
  previous: Pick<Setup, 'env' | 'madeUpSecret'>
}

/** Its answer: a {@link Setup} as plain data, or what is wrong. */
export type ReloadAnswer =
  | {
      ok: true
      setup: Omit<Setup, 'config' | 'sources'>
      config: Record<string, unknown>
      sources: [key: string, source: Source][]
    }
  | { ok: false; code: string | undefined; message: string; issues: readonly ConfigIssue[] }

/** A configuration file that takes longer hangs. */
const timeoutMs = 60_000

/**
 * Reads the configuration anew, in a process of its own: this one has imported the file, and what the file imports,
 * once and for all. Functions in it stay those of the first time.
 * @throws ConfigurationError naming all that is wrong, or BootError when it cannot be read at all.
 */
export async function reload(options: SetupOptions, { env, madeUpSecret }: Setup): Promise<Setup> {
  const question: ReloadQuestion = { options, previous: { env, madeUpSecret } }
  const child = fork(fileURLToPath(new URL('./reload-entry.js', import.meta.url)), [])
  const answered = new Promise<ReloadAnswer>((resolve, reject) => {
    child.once('message', message => resolve(message as ReloadAnswer))
    child.once('error', error => reject(new BootError(`cannot read the configuration: ${error.message}`)))
    child.once('exit', code =>
      reject(
        new BootError(`cannot read the configuration: it ended the process that read it (code ${code})`),
      ),
    )
  })
  answered.catch(() => undefined)
  try {
    child.send(question)
    const answer = await withDeadline(answered, timeoutMs)
    if (answer === undefined)
      throw new BootError(`cannot read the configuration: it takes more than ${timeoutMs / 1_000} s`)
    if (!answer.ok) {
      const { code, message, issues } = answer
      throw code === 'PGBUS_ERR_CONFIG' ? new ConfigurationError(message, { issues }) : new BootError(message)
    }
    const config = await fromPortable(answer.config, answer.setup.file)
    return { ...answer.setup, config, sources: new Map(answer.sources) }
  } finally {
    child.kill('SIGKILL')
  }
}
