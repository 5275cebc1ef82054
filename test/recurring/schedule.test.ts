import t from 'tap'
import { Schedule } from '../../lib/core/schedule.ts'
import { compiled, spawnNode } from '../support/spawn.ts'

const berlin = 'Europe/Berlin'
const runs = (text: string, from: string, count: number, zone = berlin) =>
  new Schedule(text, zone).nextRuns(count, new Date(from)).map(({ at, shifted, repeated }) => {
    const mark = shifted ? ' shifted' : repeated ? ' repeated' : ''
    return `${at.toISOString().slice(0, 16)}${mark}`
  })

t.test('given a zone that changes its clock', async t => {
  t.test('when a named hour is skipped, then it runs once, at the first instant after the gap', async t => {
    t.strictSame(runs('30 2 * * *', '2026-03-28T00:00:00Z', 3), [
      '2026-03-28T01:30',
      '2026-03-29T01:00 shifted',
      '2026-03-30T00:30',
    ])
    t.strictSame(runs('*/15 2 * * *', '2026-03-29T00:00:00Z', 2), [
      '2026-03-29T01:00 shifted',
      '2026-03-30T00:00',
    ])
  })

  t.test('when a named hour is shown twice, then it runs the first time only', async t => {
    t.strictSame(runs('30 2 * * *', '2026-10-24T12:00:00Z', 2), [
      '2026-10-25T00:30 repeated',
      '2026-10-26T01:30',
    ])
    t.strictSame(runs('30 2 * * *', '2026-10-25T00:45:00Z', 1), ['2026-10-26T01:30'])
  })

  t.test('when a schedule is for every hour, then it runs in each real hour', async t => {
    t.strictSame(runs('0 * * * *', '2026-03-28T23:30:00Z', 4), [
      '2026-03-29T00:00',
      '2026-03-29T01:00',
      '2026-03-29T02:00',
      '2026-03-29T03:00',
    ])
    t.strictSame(runs('*/30 * * * *', '2026-10-24T23:50:00Z', 5), [
      '2026-10-25T00:00',
      '2026-10-25T00:30',
      '2026-10-25T01:00',
      '2026-10-25T01:30',
      '2026-10-25T02:00',
    ])
  })
})

t.test('given any instant around a change', async t => {
  t.test('when next and latest are compared, then they tell of the same occurrences', async t => {
    const zones = [berlin, 'America/New_York', 'Australia/Lord_Howe', 'Asia/Kathmandu', 'UTC']
    const windows = ['2026-03-07T20:00Z', '2026-03-28T20:00Z', '2026-04-04T08:00Z', '2026-10-03T08:00Z']
    windows.push('2026-10-24T18:00Z', '2026-10-31T23:00Z')
    const problems: string[] = []
    for (const zone of zones)
      for (const text of ['30 2 * * *', '0 * * * *', '*/20 1,2 * * *', '*/20 * * * *', '15 */2 * * *'])
        for (const begin of windows) {
          const schedule = new Schedule(text, zone)
          const all = schedule.nextRuns(40, new Date(begin)).map(({ at }) => at.getTime())
          for (let at = Date.parse(begin); at < Date.parse(begin) + 86_400_000 / 2; at += 25 * 60_000) {
            const latest = schedule.latest(new Date(at))?.getTime() ?? 0
            const wanted = all.filter(run => run <= at).at(-1)
            if (wanted === undefined ? latest > Date.parse(begin) : latest !== wanted)
              problems.push(`${zone} ${text} ${new Date(at).toISOString()}`)
          }
          if (all.some((run, index) => index > 0 && run <= all[index - 1]!))
            problems.push(`${zone} ${text} order`)
        }
    t.strictSame(problems, [])
  })

  t.test('when it is an occurrence itself, then latest is that, and next the one after', async t => {
    const daily = new Schedule('0 8 * * *')
    const at = new Date('2026-05-01T08:00:00Z')
    t.same(daily.latest(at), at)
    t.same(daily.latest(new Date(at.getTime() - 1)), new Date('2026-04-30T08:00:00Z'))
    t.same(daily.next(at)?.at, new Date('2026-05-02T08:00:00Z'))
  })
})

t.test('given the ways to write a schedule', async t => {
  t.test('when one is right, then it is understood', async t => {
    for (const [text, expected] of [
      ['every 15 minutes', '2026-01-01T00:15'],
      ['every 6 hours', '2026-01-01T06:00'],
      ['every hour', '2026-01-01T01:00'],
      ['every day', '2026-01-02T00:00'],
      ['@hourly', '2026-01-01T01:00'],
      ['@midnight', '2026-01-02T00:00'],
      ['0 8 * * mon-fri', '2026-01-01T08:00'],
      ['30 0 8 * * *', '2026-01-01T08:00'],
      ['0 8 13 * fri', '2026-01-02T08:00'],
      ['0 2 * * * Europe/Berlin', '2026-01-01T01:00'],
    ] as const) {
      t.same(runs(text, '2026-01-01T00:00:01Z', 1, 'UTC'), [expected], text)
    }
  })

  t.test('when one is wrong, then the error quotes it', async t => {
    for (const text of [
      '',
      'every 1.minute',
      'PT5M',
      '@every 5m',
      '61 * * * *',
      '0 2 30 2 *',
      'every 7 minutes',
    ])
      t.throws(
        () => new Schedule(text),
        { name: 'TypeError', message: `cannot parse schedule "${text}"` },
        text,
      )
    t.throws(() => new Schedule('* * * * *', 'Mars/Base'), { message: 'unknown time zone "Mars/Base"' })
  })
})

t.test('given `pgbus recurring explain`', async t => {
  t.test('when the clock skips a time, then that run is marked', async t => {
    const args = ['recurring', 'explain', '30 2 * * *', '--tz', berlin, '--from', '2026-03-28T12:00Z']
    const { exited, output } = spawnNode(t, compiled('bin/pgbus.ts'), args)
    t.match(await exited, { code: 0 })
    t.match(output(), /^2026-03-29T01:00:00.000Z .*shifted/)
  })
})
