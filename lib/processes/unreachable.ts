import type { LoadedConfig } from '../config/load.ts'
import { BootError, ConfigurationError, ReplicaConnectionError } from '../core/errors.ts'
import type { Connector, TargetName } from '../db/connector.ts'
import { isNotThereYet, sqlState } from '../db/database.ts'
import { driverMessage } from '../db/driver-message.ts'

/** Where the connection settings came from: the word a person has to look for. */
export function databaseSource({
  config,
  sources,
}: Pick<LoadedConfig, 'config' | 'sources'>): 'databaseUrl' | 'connection' | 'env' {
  const key = config.databaseUrl === null ? 'connection.host' : 'databaseUrl'
  const source = sources.get(key) ?? 'default'
  // A URL that no layer of ours gave is DATABASE_URL; a connection without a host follows PGHOST.
  const fromEnvironment =
    source === 'environment' || (source === 'default' && key === 'databaseUrl' && config.databaseUrl !== null)
  if (fromEnvironment) return 'env'
  return config.databaseUrl === null ? 'connection' : 'databaseUrl'
}

/** A failed connect as the one line that a person needs: source, host and database, what the driver said. */
export function unreachable(
  error: unknown,
  loaded: Pick<LoadedConfig, 'config' | 'sources'>,
  connector: Connector,
  target: TargetName = 'base',
): Error {
  // Nothing was tried: these say what to set.
  if (error instanceof ConfigurationError) return error
  const place = connector.describe(target)
  const reason = error instanceof ReplicaConnectionError ? error.message : driverMessage(error)
  return new BootError(`cannot reach the database via ${databaseSource(loaded)} (${place}): ${reason}`, {
    cause: error,
  })
}

/** The database could not be used at all: nobody answered, or it does not let this user in, or there is none. */
export function isNoEntry(error: unknown): boolean {
  return mayCome(error) || /^(28...|3D000)$/.test(sqlState(error))
}

/** True while waiting may help: the server is starting, or its host is not up. */
export function mayCome(error: unknown): boolean {
  return isNotThereYet(error) || (error instanceof Error && error.message === 'timeout expired')
}
