import { median } from '../support/bench.ts'
import type { Figure } from './measures/measure.ts'

interface Row {
  figure: Omit<Figure, 'value'>
  samples: Map<string, number[]>
}

/** Collects figures and prints medians, each with what it is of the first peer's. */
export class Table {
  readonly #peers: readonly string[]
  #rows = new Map<string, Row>()

  constructor(peers: readonly string[]) {
    this.#peers = peers
  }

  add(peer: string, { value, ...figure }: Figure): void {
    let row = this.#rows.get(figure.what)
    if (!row) {
      row = { figure, samples: new Map() }
      this.#rows.set(figure.what, row)
    }
    const samples = row.samples.get(peer)
    if (samples) samples.push(value)
    else row.samples.set(peer, [value])
  }

  /** The lines of what was added since the last call. */
  take(): string {
    const rows = this.#rows
    this.#rows = new Map()
    return [...rows.values()].map(row => this.#print(row)).join('\n')
  }

  #print({ figure, samples }: Row): string {
    const base = this.#peers[0]
    const own = base === undefined ? undefined : samples.get(base)
    const lines = [`\n${figure.what}${figure.unit && `, ${figure.unit}`} (${figure.better} is better)`]
    for (const [peer, values] of samples) {
      const value = median(values)
      // How many times the first one's result the other would have to reach.
      const ratio =
        own === undefined || peer === base ? '' : `${base} is ${(median(own) / value).toFixed(2)} ×`
      lines.push(`  ${peer.padEnd(16)} ${format(value)}  ${ratio}`.trimEnd())
    }
    return lines.join('\n')
  }
}

function format(value: number): string {
  return (value >= 100 ? Math.round(value).toLocaleString('en') : value.toFixed(2)).padStart(10)
}
