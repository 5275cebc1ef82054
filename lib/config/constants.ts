/** What a dead-letter queue's name ends with. */
export const deadLetterSuffix = '_dlq'

/** PGMQ's limit for a queue name: 63 bytes of an identifier less its longest prefix and suffix. */
export const maxQueueNameLength = 47
