import t from 'tap'
import { SseParser } from '../../lib/client/sse-parser.ts'
import {
  durableFrame,
  ephemeralFrame,
  gapFrame,
  heartbeatFrame,
  openingFrames,
  replayEndFrame,
  replayStartFrame,
  shutdownFrame,
} from '../../lib/streams/frames.ts'

const text = (bytes: Buffer) => bytes.toString('utf8')

t.test('given the frames of one connection', async t => {
  t.test('when they are put together, then every byte is as documented', async t => {
    const bytes = [
      openingFrames({
        stream: 'room:42',
        cursor: 1790000000007,
        connectionId: '9f86d081884c7d65',
        heartbeatInterval: 15_000,
      }),
      replayStartFrame(1790000000007),
      durableFrame(
        1790000000008,
        undefined,
        '<turbo-stream action="append" target="messages"><template>hi</template></turbo-stream>',
      ),
      replayEndFrame(1790000000008, 1),
      heartbeatFrame(1796090415),
      ephemeralFrame('typing', '<p>line one\nline two</p>'),
      shutdownFrame('worker_restart', 1730),
    ]
    t.equal(
      bytes.map(text).join(''),
      `retry: 2000

: pgbus stream open since_id=1790000000007 stream=room:42

event: pgbus:connected
data: {"connectionId":"9f86d081884c7d65","heartbeat":15000}

event: pgbus:replay-start
data: {"fromId":1790000000007}

id: 1790000000008
event: turbo-stream
data: <turbo-stream action="append" target="messages"><template>hi</template></turbo-stream>

event: pgbus:replay-end
data: {"toId":1790000000008,"count":1}

: heartbeat 1796090415

event: typing
data: <p>line one
data: line two</p>

retry: 1730
event: pgbus:shutdown
data: {"reason":"worker_restart"}

`,
    )
  })

  t.test(
    'when messages were removed or ids have started again, then the gap frame tells, without an id',
    async t => {
      t.equal(
        text(gapFrame({ lastSeenId: 5, archiveOldestId: 10, reason: 'expired' })),
        'event: pgbus:gap-detected\ndata: {"lastSeenId":5,"archiveOldestId":10,"reason":"expired"}\n\n',
      )
      t.equal(
        text(gapFrame({ lastSeenId: 5, archiveOldestId: null, reason: 'reset' })),
        'event: pgbus:gap-detected\ndata: {"lastSeenId":5,"archiveOldestId":null,"reason":"reset"}\n\n',
      )
    },
  )

  t.test('when a stream is named with line ends, then they cannot end the comment', async t => {
    const opening = text(
      openingFrames({ stream: 'a\r\n\ndata: x', cursor: 0, connectionId: 'c', heartbeatInterval: 1 }),
    )
    t.match(opening, ': pgbus stream open since_id=0 stream=adata: x\n\n')
  })
})

t.test('given a payload', async t => {
  const payloads: [string, string[]][] = [
    ['', ['']],
    ['one', ['one']],
    ['a\nb', ['a', 'b']],
    ['a\r\nb\rc', ['a', 'b', 'c']],
    ['trailing\n', ['trailing', '']],
    ['\n\n', ['', '', '']],
    ['  leading and trailing  ', ['  leading and trailing  ']],
    ['<pre>\n  x\n\n  y\n</pre>', ['<pre>', '  x', '', '  y', '</pre>']],
    ['id: 7\nevent: evil\n\ndata: no', ['id: 7', 'event: evil', '', 'data: no']],
    ['ünï ✓ 😀 \u2028', ['ünï ✓ 😀 \u2028']],
  ]
  for (const [payload, lines] of payloads) {
    // In a title, U+2028 would end the line that reports it.
    t.test(
      `when it is ${JSON.stringify(payload).replaceAll('\u2028', 'U+2028')}, then the browser reads it with line ends as LF`,
      async t => {
        const frame = durableFrame(7, 'note', payload)
        t.equal(text(frame), `id: 7\nevent: note\n${lines.map(line => `data: ${line}\n`).join('')}\n`)
        const frames: unknown[] = []
        new SseParser({ onFrame: parsed => frames.push(parsed) }).push(frame)
        t.strictSame(frames, [{ event: 'note', data: lines.join('\n'), id: '7' }])
      },
    )
  }
})

t.test('given an event name that another client has stored', async t => {
  for (const event of [undefined, null, 5, {}, '', '  ', 'a\nid: 1', 'a\rb', 'pgbus:connected', ' pgbus:x']) {
    t.test(`when it is ${JSON.stringify(event)}, then it cannot inject anything`, async t => {
      t.equal(text(ephemeralFrame(event, 'x')), 'event: turbo-stream\ndata: x\n\n')
    })
  }
})
