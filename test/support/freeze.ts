/** Stops a process of ours where it stands; the function returned lets it go on. */
export function freeze(pid: number): () => void {
  process.kill(pid, 'SIGSTOP')
  return () => {
    try {
      process.kill(pid, 'SIGCONT')
    } catch {
      // Killed meanwhile.
    }
  }
}
