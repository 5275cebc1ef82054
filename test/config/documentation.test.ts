import { readFileSync } from 'node:fs'
import t from 'tap'
import { keys } from '../../lib/config/schema.ts'
import { configurationPage, renderConfigurationPage } from '../../scripts/generate-config-docs.ts'

t.test('given docs/configuration.md', async t => {
  const page = readFileSync(configurationPage, 'utf8')

  t.test('when it is compared with the table of keys, then it is what the generator writes', async t => {
    t.equal(page, renderConfigurationPage(), 'run node dist/scripts/generate-config-docs.js')
  })

  t.test('when its rows are read, then each key has exactly one, and there are no others', async t => {
    const rows = [...page.matchAll(/^\| `([\w.]+)` \|/gm)].map(match => match[1])
    t.strictSame(rows.toSorted(), keys.map(key => key.path).toSorted())
  })
})
