import { toError } from './report.ts'

/** Why a module of the application could not be imported, with the cure where Node's own words have none. */
export function importReason(thrown: unknown): string {
  const { message } = toError(thrown)
  return /^(Unexpected token 'export'|Cannot use import statement|Cannot require\(\) ES Module)/.test(message)
    ? `${message} — it is an ES module: set "type": "module" in package.json (npm pkg set type=module), or name it .mjs`
    : message
}
