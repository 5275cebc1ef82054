import type { FastifyInstance, FastifyReply, FastifyRequest, HTTPMethods } from 'fastify'
import fp from 'fastify-plugin'
import type { Pgbus } from '../../lib/pgbus.ts'
import { healthPrefix } from '../node/health.ts'

export interface PgbusHealthOptions {
  pgbus: Pgbus
  /** Where the probes are. Default `/pgbus/health`. */
  prefix?: string | undefined
}

async function plugin(fastify: FastifyInstance, { pgbus, prefix }: PgbusHealthOptions): Promise<void> {
  if (!pgbus?.healthProbe) throw new TypeError('pgbusHealth needs { pgbus }, made by createPgbus()')
  // A prefix that is given has been applied by Fastify, since the plugin has a context of its own.
  const base = prefix === undefined ? healthPrefix : ''
  const answer = async (request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> => {
    const { '*': path } = request.params as { '*'?: string }
    const { code, headers, body } = await pgbus.healthProbe.answer(
      request.method,
      path === undefined ? '' : `/${path}`,
    )
    return reply.code(code).headers(headers).send(body)
  }
  for (const url of [base || '/', `${base}/*`]) {
    fastify.route({
      method: fastify.supportedMethods as HTTPMethods[],
      url,
      exposeHeadRoute: false,
      // A line for every probe would bury all others.
      logLevel: 'warn',
      // Before a body is looked at.
      onRequest: answer,
      handler: answer,
    })
  }
}

/** `/livez` and `/readyz` of the whole cluster in a Fastify application. */
export const pgbusHealth = fp(plugin, { fastify: '5.x', name: 'pgbus-health', encapsulate: true })
