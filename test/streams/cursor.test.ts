import t from 'tap'
import { readCursor } from '../../lib/streams/cursor.ts'

const highest = Number.MAX_SAFE_INTEGER

t.test('given what a page and a browser say', async t => {
  const cursors: [string, string[], string | undefined, number][] = [
    ['nothing', [], undefined, 0],
    ['a blank', [''], ' ', 0],
    ['the page alone', ['12'], undefined, 12],
    ['the browser alone', [], '34', 34],
    ['the browser more', ['12'], '34', 34],
    ['the page more, as after a reload', ['56'], '34', 56],
    ['the page twice', ['12', '13'], undefined, 13],
    ['the largest id', [String(highest)], undefined, highest],
    ['leading zeros', ['0012'], undefined, 12],
    ['a negative header, as another server writes for ephemeral frames', ['12'], '-3', 12],
  ]
  for (const [what, since, lastEventId, expected] of cursors) {
    t.test(`when it is ${what}, then the higher one counts`, async t => {
      t.equal(readCursor({ since, lastEventId }), expected)
    })
  }
})

t.test('given something that is no id', async t => {
  for (const text of [
    '+1',
    ' 1',
    '1.5',
    '-1',
    '1e3',
    'abc',
    '0x10',
    '١',
    String(highest + 1),
    '9'.repeat(17),
  ]) {
    t.test(`when the page says ${JSON.stringify(text)}, then it is refused`, async t => {
      t.throws(() => readCursor({ since: [text], lastEventId: undefined }), {
        code: 'PGBUS_ERR_INVALID_CURSOR',
        message: 'since should be a message id',
      })
    })
  }
  for (const text of ['+1', '1.5', 'abc', '1, 2', '--1', '-', String(highest + 1)]) {
    t.test(`when the browser says ${JSON.stringify(text)}, then it is refused`, async t => {
      t.throws(() => readCursor({ since: ['5'], lastEventId: text }), {
        code: 'PGBUS_ERR_INVALID_CURSOR',
        message: 'Last-Event-ID should be a message id',
      })
    })
  }
})
