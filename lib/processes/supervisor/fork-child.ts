import { fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { ChildLike } from './child-handle.ts'

/** The compiled child, with the options of this process. Children must not compete for the inspector's port. */
export function forkChild(): ChildLike {
  return fork(fileURLToPath(new URL('./child-entry.js', import.meta.url)), [], {
    execArgv: process.execArgv.map(option => option.replace(/^(--inspect(?:-brk|-wait)?)(=.*)?$/, '$1=0')),
    // Values of the configuration that JSON would change (an infinite number) arrive as they are.
    serialization: 'advanced',
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  })
}
