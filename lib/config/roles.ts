import { type Checked, custom, type Rule } from './rules.ts'

/** What a job host can do; each is one or more child processes. */
export const roles = ['workers', 'consumers', 'dispatcher', 'scheduler', 'outbox'] as const

export type Role = (typeof roles)[number]

/** One role, several, or null for all. */
export const roleList: Rule = custom(`\`${roles.join('`, `')}\`, an array of them, or null`, 'list', check)

/** Whether a host of this configuration has the role. */
export function hasRole({ roles: chosen }: { roles: readonly Role[] | null }, role: Role): boolean {
  return chosen?.includes(role) ?? true
}

function check(value: unknown): Checked {
  if (value === null) return { value: null }
  const named = typeof value === 'string' ? [value] : value
  if (!Array.isArray(named)) return { rule: 'must be a role, an array of roles, or null' }
  const chosen = new Set<Role>()
  for (const name of named) {
    const role = roles.find(known => known === String(name).trim().toLowerCase())
    if (role === undefined) return { rule: `unknown role "${name}"; roles are: ${roles.join(', ')}` }
    chosen.add(role)
  }
  if (chosen.size > 0) return { value: [...chosen] }
  return { value: [], warning: 'is empty; pgbus start has nothing to run' }
}
