/** One page of a list. */
export interface PageOptions {
  /** Counts from 1. Default 1. */
  page?: number | undefined
  /** At most 1000. Default 25. */
  perPage?: number | undefined
}

/** @throws TypeError */
export function readPage({ page = 1, perPage = 25 }: PageOptions): { page: number; perPage: number } {
  checkWhole('page', page, 1_000_000)
  checkWhole('perPage', perPage, 1_000)
  return { page, perPage }
}

/** @throws TypeError unless it is an integer from 1 to `most`. */
export function checkWhole(name: string, value: number, most: number): void {
  if (!Number.isSafeInteger(value) || value < 1 || value > most)
    throw new TypeError(`${name} must be an integer from 1 to ${most}, got ${String(value)}`)
}
