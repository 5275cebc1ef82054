import { type Command, configOption, jsonOption, load } from '../cli.ts'

/** `pgbus config`: the configuration as it is understood, without its secrets. */
export const config: Command = {
  name: 'config',
  summary: 'show the resolved configuration without its secrets',
  options: [['--check', 'only say whether it is valid'], jsonOption, configOption],
  async run(flags, context) {
    const loaded = await load(flags, context)
    const { redactConfig } = await import('../../lib/config/redact.ts')
    const json = flags.json === true
    for (const { path, rule, hint } of loaded.warnings)
      context.warn(`warning: ${path} ${rule}${hint === undefined ? '' : ` (${hint})`}`)
    if (flags.check === true) {
      const { file, warnings } = loaded
      context.print(
        json
          ? JSON.stringify({
              valid: true,
              file,
              warnings: warnings.map(({ path, rule }) => ({ path, rule })),
            })
          : `the configuration is valid (${file ?? 'no file'})`,
      )
      return 0
    }
    const redacted = redactConfig(loaded.config)
    if (json) {
      context.print(JSON.stringify({ file: loaded.file, config: redacted }, replacer))
      return 0
    }
    context.print(`# ${loaded.file ?? 'no configuration file'}`)
    for (const [path, value] of flatten(redacted, loaded.sources)) {
      const source = loaded.sources.get(path)
      context.print(
        `${path} = ${JSON.stringify(value, replacer)}${source === undefined || source === 'default' ? '' : `  # ${source}`}`,
      )
    }
    return 0
  },
}

/** Key paths with their values. What is no group of keys is a value, however deep. */
function* flatten(
  group: Record<string, unknown>,
  keys: ReadonlyMap<string, string>,
  prefix = '',
): Generator<[string, unknown]> {
  for (const [name, value] of Object.entries(group)) {
    const path = `${prefix}${name}`
    const isGroup = !keys.has(path) && typeof value === 'object' && value !== null && !Array.isArray(value)
    if (isGroup) yield* flatten(value as Record<string, unknown>, keys, `${path}.`)
    else yield [path, value]
  }
}

/** Patterns and functions have no JSON of their own. */
function replacer(_key: string, value: unknown): unknown {
  if (value instanceof RegExp) return String(value)
  return typeof value === 'function' ? '[function]' : value
}
