import { dispatch, localMember } from '../../jobs/local-member.ts'
import { type HubMember, type HubMessage, NotifyHub } from '../../jobs/notify-hub.ts'
import type { Worker, WorkerOptions } from '../../jobs/worker.ts'
import type { ChildBeat } from '../messages.ts'
import { HeldReporter } from './held.ts'
import { RecyclePolicy } from './recycle-policy.ts'
import type { Runner, RunnerContext } from './runner.ts'

type Create = (hooks: Pick<WorkerOptions, 'onHeld' | 'onTables'>) => Worker

/** Runs the jobs of one entry of `workers`, or the event handlers of one of `consumers`. */
export class WorkerRunner implements Runner {
  readonly #worker: Worker
  readonly #context: RunnerContext
  readonly #recycling: RecyclePolicy
  /** With `notify.scope: 'fork'`, its own connection; else the supervisor has one for all. */
  readonly #own: { hub: NotifyHub; member: HubMember } | undefined

  constructor(create: Create, context: RunnerContext) {
    const held = new HeldReporter((difference, sent) => context.tell({ t: 'held', ...difference }, sent))
    this.#context = context
    this.#recycling = new RecyclePolicy(context.pgbus.config.recycle)
    this.#worker = create({
      onHeld: change => held.report(change),
      onTables: tables => this.#listen(tables),
    })
    this.#worker.setDelivering(context.delivering)
    const { enabled, scope } = context.pgbus.config.notify
    if (enabled && scope === 'fork') {
      this.#own = { hub: NotifyHub.open(context.pgbus), member: localMember(this.#worker) }
    }
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

  async stop(options: { immediate: boolean }): Promise<void> {
    await this.#worker.stop(options)
    await this.#own?.hub.close()
  }

  receive(message: HubMessage): void {
    dispatch(this.#worker, message)
  }

  #listen(tables: string[]): void {
    const wildcard = this.#worker.readsPatterns
    if (this.#own) void this.#own.hub.listen(this.#own.member, tables, { wildcard })
    else this.#context.tell({ t: 'listen', tables, wildcard })
  }
}
