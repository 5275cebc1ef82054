import { type AddressInfo, createServer } from 'node:net'

/** A TCP port of 127.0.0.1 that nobody uses at the moment. */
export async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise(resolve => server.close(resolve))
  return port
}
