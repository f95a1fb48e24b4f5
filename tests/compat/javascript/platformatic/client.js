// The client @platformatic/kafka, tried by ../checks.js.
'use strict'

const { Admin, Consumer, ListOffsetTimestamps, Producer } = require('@platformatic/kafka')
const { ALL_CODECS, BATCH, FETCH_WAIT_MS, HEARTBEAT_MS, expect, main, sessionMs, within } = require('../checks.js')

function taken ({ offset, key, value, headerEntries, timestamp }) {
  const headers = headerEntries.map(([name, bytes]) => [name.toString(), bytes])
  return { offset: Number(offset), key: key ?? null, value: value ?? null, headers, timestamp: Number(timestamp) }
}

class Client {
  constructor (address) {
    this.base = { clientId: 'checks', bootstrapBrokers: [address] }
    this.admin = new Admin(this.base)
    this.readers = 0
    this.codecs = ALL_CODECS
    this.afterTheEnd = -1
  }

  close () {
    return this.admin.close()
  }

  async createTopic (topic, partitions) {
    await this.admin.createTopics({ topics: [topic], partitions, replicas: 1 })
  }

  topics () {
    return this.admin.listTopics()
  }

  async partitions (topic) {
    const { topics } = await this.admin.metadata({ topics: [topic], forceUpdate: true })
    return topics.get(topic).partitionsCount
  }

  deleteTopic (topic) {
    return this.admin.deleteTopics({ topics: [topic] })
  }

  async produce (topic, codec, idempotent, messages) {
    const producer = new Producer({ ...this.base, compression: codec, idempotent, acks: idempotent ? -1 : 1 })
    try {
      const sent = messages.map(({ key, value, headers, timestamp }) => ({
        topic, partition: 0, key, value, headers: new Map(headers.map(([name, bytes]) => [Buffer.from(name), bytes])), timestamp: BigInt(timestamp)
      }))
      const { offsets: [{ offset }] } = await producer.send({ messages: sent })
      return Number(offset)
    } finally {
      await producer.close()
    }
  }

  async timed (topic, timestamp) {
    const { partitions: [{ offset }] } = (await this.admin.listOffsets({
      topics: [{ name: topic, partitions: [{ partitionIndex: 0, timestamp }] }]
    }))[0]
    return Number(offset)
  }

  offsetAt (topic, ms) {
    return this.timed(topic, BigInt(ms))
  }

  consumer (groupId, more = {}) {
    return new Consumer({ ...this.base, groupId, autocommit: false, maxWaitTime: FETCH_WAIT_MS, ...more })
  }

  async read (topic, offset) {
    const end = await this.timed(topic, ListOffsetTimestamps.LATEST)
    const found = []
    if (offset === end) return found
    const consumer = this.consumer(`${topic}-reader-${this.readers++}`)
    try {
      const offsets = [{ topic, partition: 0, offset: BigInt(offset) }]
      const stream = await consumer.consume({ topics: [topic], mode: 'manual', offsets })
      await within((async () => {
        for await (const one of stream) {
          found.push(taken(one))
          if (Number(one.offset) === end - 1) return
        }
      })(), () => `${found.length} messages`)
    } finally {
      await consumer.close(true)
    }
    return found
  }

  async readInGroup (group, topic, count) {
    const offsets = []
    const consumer = this.consumer(group)
    try {
      const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest' })
      await within((async () => {
        for await (const one of stream) {
          offsets.push(Number(one.offset))
          if (offsets.length === count) return one.commit()
        }
      })(), () => `${offsets.length} messages`)
    } finally {
      await consumer.close(true)
    }
    return offsets
  }

  async groups () {
    return [...(await this.admin.listGroups()).keys()]
  }

  async state (group) {
    return (await this.admin.describeGroups({ groups: [group] })).get(group).state
  }

  deleteGroup (group) {
    return this.admin.deleteGroups({ groups: [group] })
  }

  async member (group, topic, diary, strategy, instance) {
    expect(strategy === 'roundrobin', `no strategy ${strategy}`)
    const consumer = this.consumer(group, {
      groupInstanceId: instance,
      sessionTimeout: sessionMs(instance),
      rebalanceTimeout: 2 * sessionMs(instance),
      heartbeatInterval: HEARTBEAT_MS,
      retries: 30,
      retryDelay: HEARTBEAT_MS
    })
    consumer.on('consumer:group:join', ({ assignments }) => {
      for (const each of assignments ?? []) {
        if (each.topic === topic) for (const partition of each.partitions) diary.write('assigned', partition)
      }
    })
    process.on('SIGTERM', () => consumer.close(true).then(() => process.exit(0), () => process.exit(1)))
    const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest' })
    let waiting = []
    const commit = async () => {
      const last = new Map(waiting.map(one => [one.partition, one]))
      waiting = []
      for (const one of last.values()) {
        await one.commit()
        diary.write('committed', one.partition, one.offset + 1n)
      }
    }
    for await (const one of stream) {
      diary.write('read', one.partition, one.offset)
      waiting.push(one)
      if (waiting.length === BATCH || stream.readableLength === 0) await commit()
    }
  }
}

main(address => new Client(address))
