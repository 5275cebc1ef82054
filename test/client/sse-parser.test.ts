import fc from 'fast-check'
import t from 'tap'
import { type SseFrame, SseParser } from '../../lib/client/sse-parser.ts'

interface Outcome {
  frames: SseFrame[]
  retries: number[]
  comments: string[]
}

function parse(chunks: (string | Uint8Array)[]): Outcome {
  const outcome: Outcome = { frames: [], retries: [], comments: [] }
  const parser = new SseParser({
    onFrame: frame => outcome.frames.push(frame),
    onRetry: delay => outcome.retries.push(delay),
    onComment: text => outcome.comments.push(text),
  })
  for (const chunk of chunks) parser.push(chunk)
  return outcome
}

const frame = (data: string, rest: Partial<SseFrame> = {}): SseFrame => ({
  event: 'message',
  data,
  id: null,
  ...rest,
})

t.test('given a whole stream', async t => {
  const cases: [title: string, text: string, frames: SseFrame[], others?: Partial<Outcome>][] = [
    ['one line of data', 'data: a\n\n', [frame('a')]],
    ['every field', 'id: 7\nevent: chat\ndata: a\n\n', [frame('a', { id: '7', event: 'chat' })]],
    ['fields in another order', 'data: a\nevent: chat\nid: 7\n\n', [frame('a', { id: '7', event: 'chat' })]],
    ['several data lines', 'data: a\ndata: b\ndata:\ndata: c\n\n', [frame('a\nb\n\nc')]],
    ['one empty data line', 'data:\n\n', [frame('')]],
    ['a data line without colon', 'data\n\n', [frame('')]],
    ['two empty data lines', 'data:\ndata: \n\n', [frame('\n')]],
    ['no data', 'id: 7\nevent: chat\n\n', []],
    ['one leading space only is removed', 'data:  a \n\n', [frame(' a ')]],
    ['no leading space', 'data:a\n\n', [frame('a')]],
    ['a tab is not a space', 'data:\ta\t\n\n', [frame('\ta\t')]],
    ['colons in the value', 'data: a: b\n\n', [frame('a: b')]],
    ['CR', 'data: a\r\rdata: b\r\r', [frame('a'), frame('b')]],
    ['CRLF', 'data: a\r\ndata: b\r\n\r\n', [frame('a\nb')]],
    ['mixed line ends', 'data: a\rdata: b\r\ndata: c\n\r', [frame('a\nb\nc')]],
    ['a comment', ': hello\n\ndata: a\n\n', [frame('a')], { comments: [' hello'] }],
    ['an empty comment', ':\n\n', [], { comments: [''] }],
    ['a comment inside a frame', 'data: a\n: hello\ndata: b\n\n', [frame('a\nb')], { comments: [' hello'] }],
    ['retry alone', 'retry: 2000\n\n', [], { retries: [2000] }],
    ['retry with data', 'retry: 5\ndata: a\n\n', [frame('a')], { retries: [5] }],
    ['retry that is no number', 'retry: 1s\nretry: -1\nretry: 1.5\nretry:\nretry: \u0661\n\n', []],
    ['an id with NUL is ignored', 'id: a\0b\ndata: a\n\n', [frame('a')]],
    ['an id with NUL leaves the one before', 'id: 1\nid: 2\0\ndata: a\n\n', [frame('a', { id: '1' })]],
    ['an empty id', 'id\ndata: a\n\n', [frame('a', { id: '' })]],
    ['an id belongs to its frame', 'id: 1\ndata: a\n\ndata: b\n\n', [frame('a', { id: '1' }), frame('b')]],
    ['an id without data goes with its frame', 'id: 1\n\ndata: b\n\n', [frame('b')]],
    ['an event belongs to its frame', 'event: x\n\ndata: b\n\n', [frame('b')]],
    ['an empty event', 'event:\ndata: a\n\n', [frame('a')]],
    ['unknown and capital fields', 'foo: 1\nDATA: x\n data: y\ndata: a\n\n', [frame('a')]],
    ['empty lines', '\n\n\r\n\r\rdata: a\n\n\n\n', [frame('a')]],
    ['a BOM', '\uFEFFdata: a\n\n', [frame('a')]],
    ['only the first BOM', '\uFEFF\uFEFFdata: a\n\ndata: b\n\n', [frame('b')]],
    ['a BOM later on is text', 'data: \uFEFFa\n\n', [frame('\uFEFFa')]],
    ['a frame without an end', 'data: a\n\ndata: b\n', [frame('a')]],
    ['a line without an end', 'data: a\n\ndata: b', [frame('a')]],
    ['nothing', '', []],
    ['prototype names as fields', '__proto__: 1\nconstructor: 2\ndata: a\n\n', [frame('a')]],
  ]
  for (const [title, text, frames, others] of cases) {
    t.test(`when it has ${title}, then the frames are right`, async t => {
      const expected: Outcome = { frames, retries: [], comments: [], ...others }
      t.strictSame(parse([text]), expected, 'as text')
      t.strictSame(parse([new TextEncoder().encode(text)]), expected, 'as bytes')
      t.strictSame(parse([...text]), expected, 'character by character')
    })
  }
})

t.test('given payloads that were written as a stream', async t => {
  const payloads: Record<string, string> = {
    'two lines': 'a\nb',
    'a line feed': '\n',
    'a line feed at the end': 'a\n',
    'line feeds at the start': '\n\na',
    blanks: '  a  ',
    'indented HTML': '<p>\n  x\n</p>\n',
    'characters beyond ASCII': 'gr\u00f6\u00dfer \u{1f680} \u2028 \0',
    nothing: '',
    'a comment': ': x',
    'a data line': 'data: x',
  }
  for (const [title, payload] of Object.entries(payloads)) {
    t.test(`when ${title} is read, then nothing is lost or trimmed`, async t => {
      const lines = payload.split('\n').map(line => `data: ${line}\n`)
      t.equal(parse([`${lines.join('')}\n`]).frames[0]?.data, payload)
    })
  }
})

t.test('given chunks that end at awkward places', async t => {
  t.test('when CR ends a chunk and LF opens the next, then they are one line end', async t => {
    t.strictSame(parse(['data: a\r', '\ndata: b\r', '\n\r', '\n']).frames, [frame('a\nb')])
  })
  t.test('when CR ends a chunk and no LF follows, then the frame is complete already', async t => {
    t.strictSame(parse(['data: a\r', '\r']).frames, [frame('a')])
    t.strictSame(
      parse(['data: a\r', '', '\ndata: b\r\r']).frames,
      [frame('a\nb')],
      'with an empty chunk between',
    )
  })
  t.test('when a character is split, then it is read whole', async t => {
    const bytes = new TextEncoder().encode('data: 🚀\n\n')
    t.strictSame(parse([...bytes].map(byte => Uint8Array.of(byte))).frames, [frame('🚀')])
  })
  t.test('when the BOM is split, then it is removed', async t => {
    const bytes = new TextEncoder().encode('\uFEFFdata: a\n\n')
    t.strictSame(parse([...bytes].map(byte => Uint8Array.of(byte))).frames, [frame('a')])
  })
  t.test('when a line of millions of characters comes in small chunks, then reading it ends', async t => {
    // Long enough for a quadratic reader to run into the timeout.
    const { frames } = parse(['data: ', ...Array.from({ length: 500_000 }, () => '0123456789'), '\n\n'])
    t.equal(frames[0]?.data.length, 5_000_000)
  })
})

const words = [
  'data',
  'data: ',
  'data:',
  'id: ',
  'event: ',
  'retry: ',
  ':',
  ' ',
  '\n',
  '\r',
  '\r\n',
  '\n\n',
  '\0',
  '\uFEFF',
  'é',
  '🚀',
  '7',
]
const bytes = fc
  .array(
    fc.oneof(
      { weight: 6, arbitrary: fc.constantFrom(...words).map(word => new TextEncoder().encode(word)) },
      { weight: 1, arbitrary: fc.uint8Array({ maxLength: 4 }) },
    ),
    { maxLength: 40 },
  )
  .map(parts => Uint8Array.from(parts.flatMap(part => [...part])))

/** The same rules, written down for a text that is there as a whole. */
function parseWhole(input: Uint8Array): Outcome {
  const outcome: Outcome = { frames: [], retries: [], comments: [] }
  const lines = new TextDecoder().decode(input).split(/\r\n|\r|\n/)
  lines.pop()
  let block: [string, string][] = []
  for (const line of lines) {
    const [, name = '', value = ''] = /^([^:]*)(?::[ ]?)?(.*)$/su.exec(line) ?? []
    if (line.startsWith(':')) outcome.comments.push(line.slice(1))
    else if (line !== '') block.push([name, value])
    if (name === 'retry' && /^[0-9]+$/.test(value)) outcome.retries.push(Number(value))
    if (line !== '') continue
    const all = (wanted: string) => block.filter(([field]) => field === wanted).map(([, content]) => content)
    const data = all('data')
    const id = all('id').filter(content => !content.includes('\0'))
    if (data.length > 0) {
      outcome.frames.push({
        event: all('event').at(-1) || 'message',
        data: data.join('\n'),
        id: id.at(-1) ?? null,
      })
    }
    block = []
  }
  return outcome
}

t.test('given any bytes', async t => {
  t.test('when they are split anywhere, then the frames are those of the whole', async () => {
    const property = fc.property(bytes, fc.array(fc.nat({ max: 200 }), { maxLength: 12 }), (input, cuts) => {
      const points = [0, ...cuts.map(cut => cut % (input.length + 1)).sort((a, b) => a - b), input.length]
      const chunks = points.slice(1).map((point, index) => input.slice(points[index], point))
      const expected = JSON.stringify(parseWhole(input))
      for (const actual of [
        parse([input]),
        parse(chunks),
        parse([...input].map(byte => Uint8Array.of(byte))),
      ]) {
        if (JSON.stringify(actual) !== expected)
          throw new Error(`${JSON.stringify(actual)} instead of ${expected}`)
      }
    })
    fc.assert(property, { numRuns: 10_000 })
  })

  t.test('when they are split as text, then the frames are those of the whole', async () => {
    const text = fc.array(fc.oneof(fc.constantFrom(...words), fc.string({ maxLength: 3, unit: 'binary' })), {
      maxLength: 40,
    })
    const property = fc.property(text, parts => {
      const whole = JSON.stringify(parse([parts.join('')]))
      return JSON.stringify(parse(parts)) === whole && JSON.stringify(parse([...parts.join('')])) === whole
    })
    fc.assert(property, { numRuns: 5_000 })
  })
})
