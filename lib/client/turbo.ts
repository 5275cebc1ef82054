/**
 * The glue to Turbo, which applies `<turbo-stream>` elements to the page. Turbo is found when it is global
 * (`window.Turbo`), or handed over with `useTurbo` when it is only imported.
 */

/** What is used of Turbo 7 or 8. */
export interface Turbo {
  connectStreamSource(source: EventTarget): void
  disconnectStreamSource(source: EventTarget): void
  visit(location: string, options: { action: 'replace' }): void
}

/** A page that was refreshed because of a gap is not refreshed again within this many milliseconds. */
const refreshPause = 10_000

const sources = new Map<EventTarget, Turbo | null>()
let given: Turbo | null = null
let refreshedAt: number | null = null

function currentTurbo(): Turbo | null {
  return given ?? (globalThis as { Turbo?: Turbo }).Turbo ?? null
}

/**
 * Names the Turbo that applies the frames, for pages that import it instead of loading it as a script.
 *
 * @example
 * import * as Turbo from '@hotwired/turbo'
 * import { useTurbo } from 'pgbus/client'
 * useTurbo(Turbo)
 */
export function useTurbo(turbo: Turbo): void {
  given = turbo
  for (const source of sources.keys()) connectTurbo(source)
}

/** Turbo listens to `message` of this source from now on. Repeat it to find a Turbo that was loaded later. */
export function connectTurbo(source: EventTarget): void {
  const turbo = currentTurbo()
  const known = sources.get(source) ?? null
  sources.set(source, turbo)
  if (known === turbo) return
  known?.disconnectStreamSource(source)
  turbo?.connectStreamSource(source)
}

export function disconnectTurbo(source: EventTarget): void {
  sources.get(source)?.disconnectStreamSource(source)
  sources.delete(source)
}

/**
 * Loads the page again: with Turbo as a page refresh, else as a reload. Not within ten seconds of the last
 * time, so that a page which is born with a gap (its starting id comes out of a cache) does not reload for ever.
 */
export function refreshPage(): void {
  const now = performance.now()
  if (now - (refreshedAt ?? loadedAt()) < refreshPause) return
  refreshedAt = now
  const turbo = currentTurbo()
  if (turbo) turbo.visit(location.href, { action: 'replace' })
  else location.reload()
}

/** When this document was loaded, if that was a reload: it may have been ours. */
function loadedAt(): number {
  const [navigation] = performance.getEntriesByType('navigation')
  return (navigation as PerformanceNavigationTiming | undefined)?.type === 'reload'
    ? 0
    : Number.NEGATIVE_INFINITY
}
