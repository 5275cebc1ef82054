import type { ResolvedWorkerEntry } from '../../config/options.ts'
import type { Worker } from '../../jobs/worker.ts'
import { HeldReporter } from './held.ts'
import type { Runner, RunnerContext } from './runner.ts'

/** Runs the jobs of one entry of `workers`. */
export class WorkerRunner implements Runner {
  readonly #worker: Worker
  readonly #context: RunnerContext

  constructor(entry: ResolvedWorkerEntry, context: RunnerContext) {
    const held = new HeldReporter((difference, sent) => context.tell({ t: 'held', ...difference }, sent))
    this.#context = context
    this.#worker = context.pgbus.createWorker(entry, {
      onHeld: change => held.report(change),
      onTables: tables => this.#listen(tables),
    })
    this.#worker.setDelivering(context.delivering)
  }

  async start(): Promise<void> {
    // LISTEN and the first claim go on at the same time: what falls between them is found by the wake that
    // follows LISTEN.
    this.#listen(this.#worker.tables)
    await this.#worker.start()
    await this.#worker.onFirstPass
  }

  stop(options: { immediate: boolean }): Promise<void> {
    return this.#worker.stop(options)
  }

  wake(): void {
    this.#worker.wake()
  }

  setDelivering(delivering: boolean): void {
    this.#worker.setDelivering(delivering)
  }

  refresh(): void {
    this.#worker.refresh()
  }

  #listen(tables: string[]): void {
    this.#context.tell({ t: 'listen', tables, wildcard: this.#worker.readsPatterns })
  }
}
