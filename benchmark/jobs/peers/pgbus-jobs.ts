/** Imported by the worker's process, which claims nothing before this module is through. */
import { defineJob } from '../../../lib/jobs/define.ts'
import { handled, waitForStart } from '../report.ts'
import type { Payload } from './peer.ts'

defineJob<Payload>({ name: 'bench' }, payload => handled(payload))
await waitForStart()
