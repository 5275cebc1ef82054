export * from './core/errors.ts'
