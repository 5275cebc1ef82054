import { join } from 'node:path'
import t from 'tap'
import { findModules, importModules } from '../../../lib/processes/supervisor/imports.ts'

t.test('given a folder of modules', async t => {
  const folder = t.testdir({
    'pgbus.config.js': '',
    'one.js': 'globalThis.importedBy = [...(globalThis.importedBy ?? []), "one"]',
    'two.mjs': 'globalThis.importedBy = [...(globalThis.importedBy ?? []), "two"]',
    'two.d.mts': '',
    'broken.js': 'throw new Error("no luck")',
    jobs: {
      'mail.ts': '',
      'mail.d.ts': '',
      'mail.js.map': '',
      'report.cjs': '',
      deep: { 'sync.js': '' },
      node_modules: { 'dependency.js': '' },
      '.hidden': { 'cache.js': '' },
    },
  })
  const config = join(folder, 'pgbus.config.js')
  const find = (...imports: string[]) => {
    const { files, unmatched } = findModules(imports, config)
    return { files: files.map(file => file.slice(folder.length + 1)), unmatched }
  }

  t.test('when paths are named, then they are relative to the configuration file, each once', async t => {
    t.strictSame(find('./one.js', 'one.js', 'two.mjs').files, ['one.js', 'two.mjs'])
    t.strictSame(findModules(['/srv/jobs.js'], config).files, ['/srv/jobs.js'])
    t.strictSame(findModules(['jobs.js'], null).files, [join(process.cwd(), 'jobs.js')])
  })

  t.test('when patterns are named, then modules match and nothing else does', async t => {
    t.strictSame(find('jobs/*').files, ['jobs/mail.ts', 'jobs/report.cjs'])
    t.strictSame(find('jobs/**/*.js').files, ['jobs/deep/sync.js'])
    t.strictSame(find('jobs/**').files, ['jobs/deep/sync.js', 'jobs/mail.ts', 'jobs/report.cjs'])
    t.strictSame(find('{one,two}.*').files, ['one.js', 'two.mjs'])
    t.strictSame(find('jobs/mai?.ts').files, ['jobs/mail.ts'])
  })

  t.test('when a pattern matches nothing, then it is told', async t => {
    t.strictSame(find('nothing/*.js', 'jobs/*.rb', 'one.js'), {
      files: ['one.js'],
      unmatched: ['nothing/*.js', 'jobs/*.rb'],
    })
  })

  t.test('when they are imported, then in order', async t => {
    await importModules(findModules(['two.mjs', 'one.js'], config).files)
    t.strictSame((globalThis as { importedBy?: string[] }).importedBy, ['two', 'one'])
  })

  t.test('when one throws or is missing, then the error names the file and the reason', async t => {
    await t.rejects(importModules([join(folder, 'broken.js')]), {
      code: 'PGBUS_ERR_BOOT',
      message: `cannot import ${join(folder, 'broken.js')}: no luck`,
    })
    await t.rejects(importModules([join(folder, 'absent.js')]), { message: /cannot import .*absent\.js: / })
  })
})
