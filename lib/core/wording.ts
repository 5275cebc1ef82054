/** Pieces of sentences for people. */

/** Names that a list shows. */
export const namesShown = 10

/** `1 queue`, `2 queues`. */
export function counted(count: number, one: string, many = `${one}s`): string {
  return `${count} ${count === 1 ? one : many}`
}

/** The first ten, and how many more there are. */
export function listed(names: readonly string[]): string {
  const more = names.length - namesShown
  return `${names.slice(0, namesShown).join(', ')}${more > 0 ? ` (+${more} more)` : ''}`
}
