import type { Order } from './orders.ts'

interface PageData {
  /** The `<pgbus-stream-source>` tag with its script. */
  source: string
  board: Order[]
  totals: { done: number; open: number }
  worker: number
}

/** The whole page. The board is complete without JavaScript; the stream only keeps it up to date. */
export function renderPage({ source, board, totals, worker }: PageData): string {
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Order desk · pgbus</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/assets/board.css">
<script type="module" src="/assets/board.js"></script>
</head>
<body>
${source}
<header>
  <div class="brand"><span class="mark" aria-hidden="true"></span><h1>Order desk</h1><span class="sub">jobs and live updates on one PostgreSQL</span></div>
  <p class="link" id="link" data-state="connecting" role="status"><span></span><b>connecting</b></p>
</header>
<main>
  <section class="desk">
    <form id="place" method="post" action="/orders">
      <label for="count">Place orders</label>
      <div class="row">
        <input id="count" name="count" type="number" min="1" max="500" value="20" required>
        <button type="submit">Place orders</button>
      </div>
      <p class="hint" id="answer" role="status">Each order is a job: payment, packing, shipping. One in six payments is declined once and retried.</p>
    </form>
    <dl class="figures">
      <div><dt>done</dt><dd id="done">${totals.done}</dd></div>
      <div><dt>open</dt><dd id="open">${totals.open}</dd></div>
      <div class="wide"><dt>orders per second</dt><dd><span id="rate">0</span><svg id="spark" viewBox="0 0 120 32" preserveAspectRatio="none" aria-hidden="true"><polyline points=""/></svg></dd></div>
    </dl>
  </section>
  <ol class="board" id="board" aria-label="Orders, newest first">
${board.map(renderOrder).join('\n')}
  </ol>
  <p class="empty" id="empty"${board.length > 0 ? ' hidden' : ''}>No orders yet. Place some, then open a second window: both show the same.</p>
</main>
<footer>Served by web worker ${worker} (pid ${process.pid}). Every step is committed with its broadcast in one transaction.</footer>
</body>
</html>
`
}

function renderOrder(order: Order): string {
  return `<li class="order" id="order-${order.id}" data-status="${escapeHtml(order.status)}" data-attempt="${order.attempt}">
  <span class="number">#${order.id}</span><span class="item">${escapeHtml(order.item)}</span><span class="status">${escapeHtml(order.status)}</span>
  <span class="bar" aria-hidden="true"><i></i><i></i><i></i><i></i></span></li>`
}

function escapeHtml(text: string): string {
  const entities: Record<string, string> = {
    '&': '&amp;',
    '<': '&lt;',
    '>': '&gt;',
    '"': '&quot;',
    "'": '&#39;',
  }
  return text.replace(/[&<>"']/g, character => entities[character] ?? character)
}
