import { SerializationError } from '../core/errors.ts'

/** The interface that validation libraries share (Standard Schema 1): zod, valibot, arktype and others. */
export interface StandardSchemaV1<Input = unknown, Output = Input> {
  readonly '~standard': {
    readonly version: 1
    readonly vendor: string
    readonly validate: (value: unknown) => SchemaResult<Output> | Promise<SchemaResult<Output>>
    readonly types?: { readonly input: Input; readonly output: Output } | undefined
  }
}

type SchemaResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly SchemaIssue[] }

interface SchemaIssue {
  readonly message: string
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined
}

/** What a schema accepts. */
export type SchemaInput<S> = S extends StandardSchemaV1<infer Input, unknown> ? Input : never
/** What a schema gives. */
export type SchemaOutput<S> = S extends StandardSchemaV1<unknown, infer Output> ? Output : never

const maxIssues = 5

export function isSchema(value: unknown): value is StandardSchemaV1 {
  // Some libraries' schemas are functions.
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) return false
  const standard = (value as { '~standard'?: { validate?: unknown } })['~standard']
  return typeof standard?.validate === 'function'
}

/**
 * What the schema makes of the arguments.
 * @throws SerializationError that names the job and the paths, never the values.
 */
export async function applySchema(job: string, schema: StandardSchemaV1, args: unknown): Promise<unknown> {
  const result = await schema['~standard'].validate(args)
  if (!result.issues) return result.value
  const shown = result.issues.slice(0, maxIssues).map(issue => `${pathOf(issue)}: ${issue.message}`)
  const more = result.issues.length - shown.length
  throw new SerializationError(
    `arguments of job "${job}" do not fit its schema: ${shown.join('; ')}${more > 0 ? ` and ${more} more` : ''}`,
  )
}

function pathOf(issue: SchemaIssue): string {
  const keys = (issue.path ?? []).map(step => String(typeof step === 'object' ? step.key : step))
  return ['args', ...keys].join('.')
}
