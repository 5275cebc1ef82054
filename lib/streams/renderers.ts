import { UnknownRendererError } from '../core/errors.ts'
import type { JsonValue } from '../core/json.ts'

/** Makes the HTML of a broadcast from the arguments given to `broadcastLater`. */
export type Renderer = (args: JsonValue) => string | Promise<string>

/** The renderers of one instance, by name: what a job worker makes HTML with. */
export class Renderers {
  readonly #renderers = new Map<string, Renderer>()

  /**
   * Registers a renderer; the same name again replaces it. Do it in a module that the job workers import.
   * @throws TypeError
   */
  register(name: string, renderer: Renderer): void {
    if (typeof name !== 'string' || name === '')
      throw new TypeError(`a renderer needs a name, instead got ${JSON.stringify(name)}`)
    if (typeof renderer !== 'function')
      throw new TypeError(`the renderer "${name}" should be a function, instead got ${typeof renderer}`)
    this.#renderers.set(name, renderer)
  }

  /**
   * The HTML.
   * @throws UnknownRendererError; TypeError when the renderer gives no text; whatever it throws.
   */
  async render(name: string, args: JsonValue): Promise<string> {
    const renderer = this.#renderers.get(name)
    if (!renderer) {
      throw new UnknownRendererError(
        `there is no renderer "${name}" in this process; register it in a module that is listed in imports`,
      )
    }
    const html: unknown = await renderer(args)
    if (typeof html === 'string') return html
    throw new TypeError(`the renderer "${name}" should give HTML as a string, instead got ${typeof html}`)
  }
}
