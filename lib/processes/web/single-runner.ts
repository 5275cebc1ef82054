import { AppHost } from './app-host.ts'
import type { Runner } from './runner.ts'
import type { Setup } from './setup.ts'

/** The application in this process, without workers. */
export function singleRunner({ config, app }: Setup): Runner {
  const host = new AppHost({ config, app, index: 0 })
  return {
    start: async () => {
      try {
        const addresses = await host.boot()
        host.log.info(`listening on ${addresses.join(', ')}`)
        return addresses
      } catch (error) {
        await host.drain(0)
        throw error
      }
    },
    stop: () => host.drain(config.web.shutdownTimeout),
    kill: async () => undefined,
  }
}
