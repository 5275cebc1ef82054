import { readFileSync } from 'node:fs'

/** The version of this package, from its manifest. */
export function packageVersion(): string {
  // Seen from dist/lib/core.
  const file = new URL('../../../package.json', import.meta.url)
  return (JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version
}
