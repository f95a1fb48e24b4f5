// The client kafkajs, tried by ../checks.js.
'use strict'

const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = require('kafkajs')
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
const { BATCH, COUNT, FETCH_WAIT_MS, HEARTBEAT_MS, expect, main, sessionMs, within } = require('../checks.js')

const CODECS = { none: 'None', gzip: 'GZIP', snappy: 'Snappy' }

class Client {
  constructor (address) {
    this.address = address
    this.kafka = new Kafka({ brokers: [address], logLevel: logLevel.NOTHING })
    this.readers = 0
    // Its plug-ins for lz4 and zstd compile C++ of their own against libraries of 2019.
    this.codecs = Object.keys(CODECS)
    // It tells the end, where others tell that there is none.
    this.afterTheEnd = COUNT
  }

  async close () {}

  async ask (question) {
    const admin = this.kafka.admin()
    await admin.connect()
    try {
      return await question(admin)
    } finally {
      await admin.disconnect()
    }
  }

  async createTopic (topic, partitions) {
    const made = await this.ask(admin => admin.createTopics({
      topics: [{ topic, numPartitions: partitions, replicationFactor: 1 }]
    }))
    expect(made, `${topic} was there`)
  }

  topics () {
    return this.ask(admin => admin.listTopics())
  }

  async partitions (topic) {
    const { topics: [{ partitions }] } = await this.ask(admin => admin.fetchTopicMetadata({ topics: [topic] }))
    return partitions.length
  }

  deleteTopic (topic) {
    return this.ask(admin => admin.deleteTopics({ topics: [topic] }))
  }

  async produce (topic, codec, idempotent, messages) {
    const producer = this.kafka.producer({ idempotent, maxInFlightRequests: 1 })
    await producer.connect()
    const sent = messages.map(one => ({
      ...one, headers: Object.fromEntries(one.headers), timestamp: `${one.timestamp}`, partition: 0
    }))
    const [kept] = await producer.send({
      topic, compression: CompressionTypes[CODECS[codec]], acks: idempotent ? -1 : 1, messages: sent
    })
    await producer.disconnect()
    expect(kept.errorCode === 0, `answered was ${JSON.stringify(kept)}`)
    return Number(kept.baseOffset)
  }

  // It reads in groups only: one of its own for each time, which commits nothing.
  async read (topic, offset) {
    const [{ high }] = await this.ask(admin => admin.fetchTopicOffsets(topic))
    const found = []
    if (offset === Number(high)) return found
    const consumer = this.kafka.consumer({ groupId: `${topic}-reader-${this.readers++}`, maxWaitTimeInMs: FETCH_WAIT_MS })
    await consumer.connect()
    try {
      await consumer.subscribe({ topic, fromBeginning: true })
      let finish
      const end = new Promise(resolve => { finish = resolve })
      await consumer.run({
        autoCommit: false,
        eachMessage: async ({ message: { offset, key, value, headers, timestamp } }) => {
          found.push({ offset: Number(offset), key, value, headers: Object.entries(headers), timestamp: Number(timestamp) })
          if (Number(offset) === Number(high) - 1) finish()
        }
      })
      consumer.seek({ topic, partition: 0, offset: `${offset}` })
      await within(end, () => `${found.length} messages`)
    } finally {
      await consumer.disconnect()
    }
    return found
  }

  async offsetAt (topic, ms) {
    const [found] = await this.ask(admin => admin.fetchTopicOffsetsByTimestamp(topic, ms))
    return Number(found.offset)
  }

  async readInGroup (group, topic, count) {
    const consumer = this.kafka.consumer({ groupId: group, maxWaitTimeInMs: FETCH_WAIT_MS })
    const offsets = []
    await consumer.connect()
    try {
      await consumer.subscribe({ topic, fromBeginning: true })
      let finish
      const end = new Promise((resolve, reject) => { finish = { resolve, reject } })
      await consumer.run({
        autoCommit: false,
        eachMessage: async ({ message }) => {
          if (offsets.length === count) return
          offsets.push(Number(message.offset))
          if (offsets.length === count) {
            const offset = `${Number(message.offset) + 1}`
            consumer.commitOffsets([{ topic, partition: 0, offset }]).then(finish.resolve, finish.reject)
          }
        }
      })
      await within(end, () => `${offsets.length} messages`)
    } finally {
      await consumer.disconnect()
    }
    return offsets
  }

  async groups () {
    return (await this.ask(admin => admin.listGroups())).groups.map(each => each.groupId)
  }

  async state (group) {
    const { groups: [{ state }] } = await this.ask(admin => admin.describeGroups([group]))
    return state
  }

  deleteGroup (group) {
    return this.ask(admin => admin.deleteGroups([group]))
  }

  async member (group, topic, diary, strategy, instance) {
    expect(strategy === 'roundrobin', `no strategy ${strategy}`)
    expect(!instance, 'it has no static members')
    const retry = { retries: 30, maxRetryTime: 1000 }
    const consumer = new Kafka({ brokers: [this.address], logLevel: logLevel.ERROR, retry }).consumer({
      groupId: group,
      sessionTimeout: sessionMs(instance),
      rebalanceTimeout: 2 * sessionMs(instance),
      heartbeatInterval: HEARTBEAT_MS,
      maxWaitTimeInMs: FETCH_WAIT_MS
    })
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
      for (const partition of payload.memberAssignment[topic] ?? []) diary.write('assigned', partition)
    })
    process.on('SIGTERM', () => consumer.disconnect().then(() => process.exit(0), () => process.exit(1)))
    await consumer.connect()
    await consumer.subscribe({ topic, fromBeginning: true })
    await consumer.run({
      autoCommit: false,
      eachBatchAutoResolve: false,
      eachBatch: async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
        for (let first = 0; first < batch.messages.length; first += BATCH) {
          if (!isRunning() || isStale()) return
          const part = batch.messages.slice(first, first + BATCH)
          for (const { offset } of part) diary.write('read', batch.partition, offset)
          const next = `${BigInt(part.at(-1).offset) + 1n}`
          // what it throws makes the library join again
          await consumer.commitOffsets([{ topic, partition: batch.partition, offset: next }])
          diary.write('committed', batch.partition, next)
          resolveOffset(part.at(-1).offset)
          await heartbeat()
        }
      }
    })
  }
}

main(address => new Client(address))
