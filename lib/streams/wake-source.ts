/**
 * Where a process learns that a stream has something new. A wake is a hint: losing or merging durable wakes
 * loses no data (the reader looks for itself), ephemeral payloads exist only here.
 */
export interface WakeSource {
  /** `hub`: wakes come from the hub of this host; `local`: from a LISTEN connection of this process. */
  readonly mode: 'hub' | 'local'
  /** Notifications arrive: connected, not a standby, and the last check came back. */
  readonly healthy: boolean
  /** Channels in use. */
  readonly channels: number
  /**
   * Takes one reference on a channel. `active`: the server has answered LISTEN. `pending`: not yet; a durable
   * wake follows when it has. Never throws.
   */
  ensureListening(channel: string): Promise<'active' | 'pending'>
  /** Gives one reference back. */
  release(channel: string): void
  /** Sets the one receiver of wakes. `payload` null: something durable was stored; else an ephemeral envelope. */
  onWake(receive: (channel: string, payload: string | null) => void): void
  close(): Promise<void>
}
