import { sqlState } from './database.ts'

const states = new Set(['42P06', '42P07', '42710', '42723', '23505', '40001', '40P01', 'XX000'])

/** Another client, which takes no lock of ours, made the same object in the same moment. Trying again finds it. */
export function isCreationRace(error: unknown): boolean {
  return states.has(sqlState(error))
}
