/**
 * Routing keys and the patterns that match them, by the same rules as the SQL that routes: a key is words with dots
 * between them; in a pattern `*` stands for one or more characters without a dot, `#` for any characters.
 * `orders.#` therefore matches `orders.created` and `orders.line.added`, but not `orders`.
 */

const maxLength = 255
const keyRule = /^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$/
const patternRule = /^[A-Za-z0-9_*#-]+(\.[A-Za-z0-9_*#-]+)*$/
const maxCached = 1_000

const matchers = new Map<string, RegExp>()

/** @throws TypeError with the rule */
export function checkRoutingKey(key: unknown): string {
  if (typeof key === 'string' && key.length <= maxLength && keyRule.test(key)) return key
  throw new TypeError(
    `a routing key is 1 to ${maxLength} letters, digits, "_" and "-", with single dots between them, got ${JSON.stringify(key)}`,
  )
}

/** @throws TypeError with the rule */
export function checkTopicPattern(pattern: unknown): string {
  if (
    typeof pattern === 'string' &&
    pattern.length <= maxLength &&
    patternRule.test(pattern) &&
    !/[*#]{2}/.test(pattern)
  )
    return pattern
  throw new TypeError(
    `a topic pattern is 1 to ${maxLength} letters, digits, "_", "-", "*" and "#", with single dots between them and no two wildcards side by side, got ${JSON.stringify(pattern)}`,
  )
}

/** Whether a pattern matches a routing key. */
export function topicMatches(pattern: string, key: string): boolean {
  let matcher = matchers.get(pattern)
  if (!matcher) {
    const source = pattern.replaceAll('.', '\\.').replaceAll('*', '[^.]+').replaceAll('#', '.*')
    matcher = new RegExp(`^${source}$`)
    if (matchers.size < maxCached) matchers.set(pattern, matcher)
  }
  return matcher.test(key)
}

/** Whether there is a routing key that both patterns match. */
export function topicsOverlap(a: string, b: string): boolean {
  const [left, right] = [stepsOf(a), stepsOf(b)]
  const characters = new Set([...a, ...b, '.', 'x'].filter(char => char !== '*' && char !== '#'))
  // Both are read at once, character by character, over every key that is allowed: a dot stands between two words.
  const start = { i: 0, j: 0, inWord: false }
  const open = [start]
  const seen = new Set<string>()
  for (let state = open.pop(); state; state = open.pop()) {
    for (const i of withSkips(left, state.i)) {
      for (const j of withSkips(right, state.j)) {
        if (i === left.length && j === right.length && state.inWord) return true
        const [one, other] = [left[i], right[j]]
        if (!one || !other) continue
        for (const char of characters) {
          if ((char === '.' && !state.inWord) || !takes(one, char) || !takes(other, char)) continue
          const next = { i: one.repeats ? i : i + 1, j: other.repeats ? j : j + 1, inWord: char !== '.' }
          const name = `${next.i} ${next.j} ${next.inWord}`
          if (seen.has(name)) continue
          seen.add(name)
          open.push(next)
        }
      }
    }
  }
  return false
}

/** One character of a key, or with `repeats` any number of them. */
interface Step {
  readonly char: string | 'word' | 'any'
  readonly repeats: boolean
}

function stepsOf(pattern: string): Step[] {
  return [...pattern].flatMap(char => {
    if (char === '#') return [{ char: 'any', repeats: true }]
    if (char !== '*') return [{ char, repeats: false }]
    return [
      { char: 'word', repeats: false },
      { char: 'word', repeats: true },
    ]
  })
}

/** The position itself, and those that are reached without reading anything. */
function withSkips(steps: readonly Step[], from: number): number[] {
  const positions = [from]
  for (let at = from; steps[at]?.repeats; at += 1) positions.push(at + 1)
  return positions
}

function takes({ char }: Step, given: string): boolean {
  return char === 'any' || (char === 'word' ? given !== '.' : given === char)
}
