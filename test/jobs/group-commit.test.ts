import t from 'tap'
import { deferred } from '../../lib/core/deferred.ts'
import { GroupCommit } from '../../lib/jobs/group-commit.ts'

/** A statement that ends when told. */
function setup(take?: (items: readonly string[]) => number) {
  const statements: { items: readonly string[]; end: (error?: Error) => void }[] = []
  const group = new GroupCommit<string, string>({
    run: async items => {
      const { promise, resolve, reject } = deferred()
      statements.push({ items: [...items], end: error => (error ? reject(error) : resolve()) })
      await promise
      return items.map(item => `${item}!`)
    },
    take,
  })
  // The end of the turn in which one statement ended is the start of the next.
  const tick = async () => {
    for (let turn = 0; turn < 2; turn += 1) await new Promise(resolve => setImmediate(resolve))
  }
  return { group, statements, tick }
}

const withCode = (code: string) => Object.assign(new Error(code), { code })

t.test('given a statement in flight', async t => {
  t.test('when items are added meanwhile, then they share the next one, in order', async t => {
    const { group, statements, tick } = setup()
    const first = group.add('a')
    await tick()
    const rest = Promise.all(['b', 'c', 'd'].map(item => group.add(item)))
    await tick()
    t.same(
      statements.map(s => s.items),
      [['a']],
      'one at a time',
    )
    statements[0]?.end()
    t.equal(await first, 'a!', 'settles with its own statement')
    await tick()
    t.same(statements[1]?.items, ['b', 'c', 'd'])
    statements[1]?.end()
    t.same(await rest, ['b!', 'c!', 'd!'])
  })

  t.test(
    'when those whom it sets free ask again after steps of their own, then none is left behind',
    async t => {
      const { group, statements, tick } = setup()
      const caller = async (steps: number) => {
        await group.add(`${steps}`)
        for (let step = 0; step < steps; step += 1) await undefined
        await group.add(`${steps} again`)
      }
      const callers = Promise.all([0, 5, 50].map(caller))
      await tick()
      statements[0]?.end()
      await tick()
      t.same(
        statements.map(s => s.items),
        [
          ['0', '5', '50'],
          ['0 again', '5 again', '50 again'],
        ],
      )
      statements[1]?.end()
      await callers
    },
  )

  t.test('when it fails with its connection, then all of it fails and the next goes on', async t => {
    const { group, statements, tick } = setup()
    const lost = Promise.allSettled([group.add('a'), group.add('b')])
    await tick()
    t.same(statements[0]?.items, ['a', 'b'], 'the same tick shares')
    const next = group.add('c')
    statements[0]?.end(withCode('57P01'))
    t.same(
      (await lost).map(r => r.status),
      ['rejected', 'rejected'],
    )
    await tick()
    statements[1]?.end()
    t.equal(await next, 'c!')
  })
})

t.test('given a bad item among good ones', async t => {
  t.test('when the server refuses its data, then it fails alone', async t => {
    const group = new GroupCommit<number, number>({
      run: async items => {
        if (items.includes(5)) throw withCode('22P05')
        return items.map(item => item * 2)
      },
    })
    const results = await Promise.allSettled([1, 2, 3, 4, 5, 6, 7].map(item => group.add(item)))
    t.same(
      results.map(r => (r.status === 'fulfilled' ? r.value : 'failed')),
      [2, 4, 6, 8, 'failed', 12, 14],
    )
  })
})

t.test('given a limit of a statement', async t => {
  t.test('when more is waiting, then it goes in pieces', async t => {
    const { group, statements, tick } = setup(items => Math.min(2, items.length))
    const all = Promise.all(['a', 'b', 'c'].map(item => group.add(item)))
    await tick()
    statements[0]?.end()
    await tick()
    statements[1]?.end()
    t.same(await all, ['a!', 'b!', 'c!'])
    t.same(
      statements.map(s => s.items),
      [['a', 'b'], ['c']],
    )
  })
})
