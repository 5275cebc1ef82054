/**
 * Writes docs/configuration.md from the table of keys:
 * `npm run build && node dist/scripts/generate-config-docs.js`.
 */
import { writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { type Key, keys, variableName } from '../lib/config/schema.ts'

export const configurationPage = fileURLToPath(new URL('../../docs/configuration.md', import.meta.url))

const introduction = `# Configuration

<!-- Generated from lib/config/schema.ts by scripts/generate-config-docs.ts. Change those. -->

\`\`\`ts
// pgbus.config.ts
import { defineConfig } from 'pgbus'

export default defineConfig({
  databaseUrl: 'postgres://app@localhost/app',
  workers: 'critical: 5; default, mail: 10',
  imports: ['./jobs.ts'],
})
\`\`\`

## Where values come from

The highest layer that sets a key wins, key by key. Lists and functions replace, groups merge.

| | Layer | |
|---|---|---|
| 1 | options | The object given to \`createPgbus\`, the \`overrides\` of \`loadPgbus\`, the flags of a command. |
| 2 | environment | \`PGBUS_\` and the key in capitals: \`pool.size\` is \`PGBUS_POOL_SIZE\`. |
| 3 | file | Read by \`loadPgbus\` and the commands; \`createPgbus\` reads none. |
| 4 | \`DATABASE_URL\` | Only when nothing above names a database. |
| 5 | defaults | |

**File.** \`--config FILE\`, else \`PGBUS_CONFIG\`, else the first of \`pgbus.config.ts\`, \`.mts\`, \`.mjs\`, \`.js\`, \`.cjs\`
and \`.json\` in the working directory or a parent, up to the nearest folder with a \`package.json\`. The default export is
the configuration, or a function \`({ env }) => configuration\`, which may be async; \`env\` is \`PGBUS_ENV\`, else
\`NODE_ENV\`, else \`'development'\`.

**Environment.** An empty variable is not set; \`null\` is null; booleans are \`1 true yes on\` and \`0 false no off\`; lists
are separated by commas. \`WEB_CONCURRENCY\`, \`PORT\` and \`HOST\` set \`web.workers\`, \`web.port\` and \`web.host\` unless our own
variable does. A \`PGBUS_\` variable that is no key is a warning.

**Checks.** Everything that is wrong is reported in one \`ConfigurationError\`, before anything connects. An unknown key is
an error. The result is frozen; printed or as JSON, it shows no secret.

## Values

- **duration**: a number of *milliseconds*, or a string with one unit: \`'250ms'\`, \`'30s'\`, \`'5m'\`, \`'1h'\`, \`'7d'\`, \`'2w'\`.
  A bare number below 1000 where seconds are usual is a warning, and an error where at least 1s is required.
- **pattern**: a \`RegExp\`, or a string; in JSON and the environment, \`"/source/flags"\` is a \`RegExp\`.
- \`undefined\` means the default. \`null\` means off, or the fallback that the text names.

## Workers

One process per entry (times \`processes\`). An entry is an object; only \`queues\` is required:

- \`queues\`: most urgent first; \`mail_*\` and \`*\` are patterns.
- \`concurrency\` (5): jobs at once in one process. \`processes\` (1): such processes. \`name\`: for logs and \`--capsule\`.
- \`order\` (\`'strict'\`); \`'fair'\`: queues take turns.
- \`prefetchLimit\`, \`groupMode\`: as below, for this entry.
- \`singleActiveConsumer\` (\`false\`): one worker at a time reads each of these queues.
- \`consumerPriority\` (0): while a worker of a higher number reads a queue, this one looks less often.

In the string form \`;\` separates entries, \`,\` queues, and the number after the last \`:\` is the concurrency; an entry
is named after its first queue unless another one starts with the same. Two entries with names of their own must not
share a queue. [Jobs](jobs.md) explains what each does.
`

/** The page as it should be. */
export function renderConfigurationPage(): string {
  const sections = [...new Set(keys.map(key => key.section))]
  const tables = sections.map(section => {
    const rows = keys.filter(key => key.section === section).map(renderKey)
    return `### ${section}\n\n| Key | Type | Default | Variable | Effect |\n|---|---|---|---|---|\n${rows.join('\n')}\n`
  })
  return `${introduction}\n## Keys\n\n${tables.join('\n')}`
}

function renderKey({ path, rule, default: fallback, env, doc }: Key): string {
  const shown = fallback === undefined ? '' : `\`${JSON.stringify(fallback).replaceAll('"', "'")}\``
  return `| \`${path}\` | ${rule.type} | ${shown} | ${env ? `\`${variableName(path)}\`` : ''} | ${doc} |`
}

if (process.argv[1] === fileURLToPath(import.meta.url))
  writeFileSync(configurationPage, renderConfigurationPage())
