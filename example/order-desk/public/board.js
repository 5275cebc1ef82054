// Keeps the board up to date from the frames of the stream `orders`.
const board = document.getElementById('board')
const link = document.getElementById('link')
const answer = document.getElementById('answer')
const figures = {
  done: document.getElementById('done'),
  open: document.getElementById('open'),
  rate: document.getElementById('rate'),
}
const boardSize = 240
const rates = []

document.addEventListener('pgbus:order', event => show(event.detail.json ?? JSON.parse(event.detail.data)))
document.addEventListener('pgbus:ticker', event => tick(event.detail.json ?? JSON.parse(event.detail.data)))
document.addEventListener('pgbus:connected', () => setLink('live'))
document.addEventListener('pgbus:close', event =>
  setLink(event.detail.willReconnect ? 'reconnecting' : 'closed'),
)
document.addEventListener('pgbus:gap-detected', () => location.reload())

// The element may have connected before this module ran.
const source = document.querySelector('pgbus-stream-source')
if (source?.hasAttribute('connected') || source?.hasAttribute('connection-id')) setLink('live')

document.getElementById('place').addEventListener('submit', async event => {
  event.preventDefault()
  const button = event.target.querySelector('button')
  button.disabled = true
  try {
    const response = await fetch('/orders', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ count: Number(new FormData(event.target).get('count')) }),
    })
    const body = await response.json()
    answer.textContent = response.ok
      ? `${body.enqueued} jobs enqueued, batch ${body.batch.slice(0, 8)}`
      : body.error
  } catch {
    answer.textContent = 'The desk cannot be reached; nothing was ordered.'
  } finally {
    button.disabled = false
  }
})

function show(order) {
  let card = document.getElementById(`order-${order.id}`)
  if (!card) {
    card = document.createElement('li')
    card.className = 'order new'
    card.id = `order-${order.id}`
    for (const [name, text] of [
      ['number', `#${order.id}`],
      ['item', order.item],
      ['status', ''],
    ]) {
      const part = document.createElement('span')
      part.className = name
      part.textContent = text
      card.append(part)
    }
    const bar = document.createElement('span')
    bar.className = 'bar'
    bar.append(...Array.from({ length: 4 }, () => document.createElement('i')))
    card.append(bar)
    place(card, order.id)
    document.getElementById('empty').hidden = true
  }
  card.dataset.status = order.status
  card.dataset.attempt = order.attempt
  card.querySelector('.status').textContent = order.status
}

// Newest first; frames may arrive in any order of numbers.
function place(card, id) {
  const next = [...board.children].find(other => Number(other.id.slice(6)) < id)
  board.insertBefore(card, next ?? null)
  while (board.children.length > boardSize) board.lastElementChild.remove()
}

function tick({ done, open, rate }) {
  figures.done.textContent = done
  figures.open.textContent = open
  figures.rate.textContent = rate
  rates.push(rate)
  if (rates.length > 60) rates.shift()
  const top = Math.max(1, ...rates)
  document
    .querySelector('#spark polyline')
    .setAttribute(
      'points',
      rates.map((value, index) => `${(index / 59) * 120},${31 - (value / top) * 28}`).join(' '),
    )
}

function setLink(state) {
  link.dataset.state = state
  link.querySelector('b').textContent = state
}
