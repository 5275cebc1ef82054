import type { ResolvedWorkerEntry } from '../../config/options.ts'
import type { Worker } from '../../jobs/worker.ts'
import type { Cancelled } from '../../pgmq/statements.ts'
import type { ChildBeat } from '../messages.ts'
import { HeldReporter } from './held.ts'
import { RecyclePolicy } from './recycle-policy.ts'
import type { Runner, RunnerContext } from './runner.ts'

/** Runs the jobs of one entry of `workers`. */
export class WorkerRunner implements Runner {
  readonly #worker: Worker
  readonly #context: RunnerContext
  readonly #recycling: RecyclePolicy

  constructor(entry: ResolvedWorkerEntry, context: RunnerContext) {
    const held = new HeldReporter((difference, sent) => context.tell({ t: 'held', ...difference }, sent))
    this.#context = context
    this.#recycling = new RecyclePolicy(context.pgbus.config.recycle)
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

  beat(): ChildBeat {
    const { processed, stuck, oldest } = this.#worker.stats()
    const reason = this.#recycling.reason({ processed, stuck })
    if (reason !== undefined) this.#context.tell({ t: 'recycle', reason })
    return { loop: this.#worker.loopAge, oldest }
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

  cancel(cancelled: Cancelled): void {
    this.#worker.cancel(cancelled)
  }

  refresh(): void {
    this.#worker.refresh()
  }

  #listen(tables: string[]): void {
    this.#context.tell({ t: 'listen', tables, wildcard: this.#worker.readsPatterns })
  }
}
