// The client kafkajs, tried as tests/compat/go/checks tells: the same checks, the same lines, the same diary.
'use strict'

const fs = require('node:fs')
const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = require('kafkajs')
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')

const COUNT = 300
const FIRST_MS = 1_700_000_000_000
const WITHIN_MS = 60_000
const SESSION_MS = 6_000
const HEARTBEAT_MS = 500
const FETCH_WAIT_MS = 50
const BATCH = 20
const CODECS = { none: 'None', gzip: 'GZIP', snappy: 'Snappy' }
// Its plug-ins for these compile C++ of their own against libraries of 2019.
const MISSING_CODECS = ['lz4', 'zstd']

const messages = Array.from({ length: COUNT }, (_, number) => ({
  offset: number,
  key: number % 10 === 3 ? null : Buffer.from(`key-${number}`),
  value: number % 5 === 2 ? null : Buffer.from(`value ${number} `.repeat(number % 11)),
  headers: number % 3 === 1 ? { h: Buffer.from(`${number}`), empty: Buffer.alloc(0) } : {},
  timestamp: `${FIRST_MS + number}`
}))

function expect (holds, what) {
  if (!holds) throw new Error(what)
}

function text (one) {
  const shown = bytes => (bytes === null ? null : bytes.toString('latin1'))
  const headers = Object.entries(one.headers ?? {}).map(([name, value]) => [name, shown(value)])
  return JSON.stringify([one.offset, shown(one.key), shown(one.value), headers, one.timestamp])
}

function expectSame (found, wanted) {
  expect(found.length === wanted.length, `${found.length} messages, not ${wanted.length}`)
  found.forEach((one, number) => {
    expect(text(one) === text(wanted[number]), `${text(one)}, not ${text(wanted[number])}`)
  })
}

function within (promise, what) {
  let timer
  const late = new Promise((resolve, reject) => {
    timer = setTimeout(() => reject(new Error(`not in time: ${what()}`)), WITHIN_MS)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

class Checks {
  constructor (address, prefix) {
    this.kafka = new Kafka({ brokers: [address], logLevel: logLevel.NOTHING })
    this.prefix = prefix
    this.readers = 0
    this.failed = false
  }

  async check (name, body) {
    try {
      await body()
      console.log(`ok ${name}`)
    } catch (error) {
      this.failed = true
      console.log(`FAILED ${name}: ${String(error.stack).replaceAll('\n', ' ')}`)
    }
  }

  async ask (question) {
    const admin = this.kafka.admin()
    await admin.connect()
    try {
      return await question(admin)
    } finally {
      await admin.disconnect()
    }
  }

  async create (topic, partitions) {
    const made = await this.ask(admin => admin.createTopics({
      topics: [{ topic, numPartitions: partitions, replicationFactor: 1 }]
    }))
    expect(made, `${topic} was there`)
  }

  async produce (topic, codec, idempotent) {
    const producer = this.kafka.producer({ idempotent, maxInFlightRequests: 1 })
    await producer.connect()
    const sent = messages.map(one => ({ ...one, partition: 0 }))
    const [kept] = await producer.send({
      topic, compression: CompressionTypes[CODECS[codec]], acks: idempotent ? -1 : 1, messages: sent
    })
    await producer.disconnect()
    expect(kept.errorCode === 0 && kept.baseOffset === '0', `answered was ${JSON.stringify(kept)}`)
  }

  // It reads in groups only: one of its own for each time, which commits nothing.
  async read (topic, offset) {
    const [{ high }] = await this.ask(admin => admin.fetchTopicOffsets(topic))
    const found = []
    if (offset === Number(high)) return found
    const group = `${this.prefix}-reader-${this.readers++}`
    const consumer = this.kafka.consumer({ groupId: group, maxWaitTimeInMs: FETCH_WAIT_MS })
    await consumer.connect()
    try {
      await consumer.subscribe({ topic, fromBeginning: true })
      let finish
      const end = new Promise(resolve => { finish = resolve })
      await consumer.run({
        autoCommit: false,
        eachMessage: async ({ message }) => {
          found.push({ ...message, offset: Number(message.offset) })
          if (Number(message.offset) === Number(high) - 1) finish()
        }
      })
      consumer.seek({ topic, partition: 0, offset: `${offset}` })
      await within(end, () => `${found.length} messages`)
    } finally {
      await consumer.disconnect()
    }
    return found
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

  async topics () {
    const topic = `${this.prefix}-topic`
    for (let turn = 0; turn < 2; turn++) { // the name can be used again
      await this.create(topic, 3)
      const again = { topics: [{ topic, numPartitions: 3 }] }
      expect(!await this.ask(admin => admin.createTopics(again)), 'it was made twice')
      expect((await this.ask(admin => admin.listTopics())).includes(topic), 'it is not listed')
      const { topics: [{ partitions }] } = await this.ask(admin => admin.fetchTopicMetadata({ topics: [topic] }))
      expect(partitions.length === 3, `${partitions.length} partitions`)
      await this.ask(admin => admin.deleteTopics({ topics: [topic] }))
      expect(!(await this.ask(admin => admin.listTopics())).includes(topic), 'listed after it was deleted')
    }
  }

  async times () {
    // beyond the last time it tells the end, where others tell that there is none
    for (const [ms, offset] of [[0, 0], [FIRST_MS + 123, 123], [FIRST_MS + COUNT - 1, COUNT - 1], [FIRST_MS + COUNT, COUNT]]) {
      const [found] = await this.ask(admin => admin.fetchTopicOffsetsByTimestamp(`${this.prefix}-gzip`, ms))
      expect(Number(found.offset) === offset, `at ${ms}: offset ${found.offset}, not ${offset}`)
    }
  }

  async resume () {
    let first = 0
    for (const count of [40, 7, COUNT - 47]) {
      const found = await this.readInGroup(`${this.prefix}-middle`, `${this.prefix}-gzip`, count)
      expect(found.every((offset, number) => offset === first + number), `read was ${found}`)
      first += count
    }
  }

  async groups () {
    const group = `${this.prefix}-middle`
    const names = async () => (await this.ask(admin => admin.listGroups())).groups.map(each => each.groupId)
    expect((await names()).includes(group), 'it is not listed')
    const { groups: [{ state }] } = await this.ask(admin => admin.describeGroups([group]))
    expect(state === 'Empty', `its state is ${state}`)
    await this.ask(admin => admin.deleteGroups([group]))
    expect(!(await names()).includes(group), 'listed after it was deleted')
  }

  async all () {
    await this.check('topics are made, listed, described and deleted', () => this.topics())
    for (const codec of Object.keys(CODECS)) {
      await this.check(`${codec}: written and read to the end`, async () => {
        await this.create(`${this.prefix}-${codec}`, 1)
        await this.produce(`${this.prefix}-${codec}`, codec, false)
        expectSame(await this.read(`${this.prefix}-${codec}`, 0), messages)
      })
    }
    for (const codec of MISSING_CODECS) console.log(`none ${codec}: written and read to the end`)
    for (const codec of Object.keys(CODECS)) {
      await this.check(`${codec}: read from another client`, async () => {
        expectSame(await this.read(`${this.prefix}-others-${codec}`, 0), messages)
      })
    }
    for (const codec of MISSING_CODECS) console.log(`none ${codec}: read from another client`)
    await this.check('reading from any offset', async () => {
      for (const offset of [1, 150, COUNT - 1, COUNT]) {
        expectSame(await this.read(`${this.prefix}-gzip`, offset), messages.slice(offset))
      }
    })
    await this.check('offsets by time', () => this.times())
    await this.check('a commit in mid-batch, and on from there', () => this.resume())
    await this.check('the idempotent producer', async () => {
      await this.create(`${this.prefix}-idempotent`, 1)
      await this.produce(`${this.prefix}-idempotent`, 'none', true)
      expectSame(await this.read(`${this.prefix}-idempotent`, 0), messages)
    })
    await this.check('groups are listed, described and deleted', () => this.groups())
    return this.failed ? 1 : 0
  }
}

async function member (address, group, topic, path, strategy) {
  expect(strategy === 'roundrobin', `no strategy ${strategy}`)
  const file = fs.openSync(path, 'a', 0o600)
  const write = (what, partition, ...more) => {
    const now = process.hrtime.bigint() // the machine's monotonic clock
    const seconds = `${now / 1_000_000_000n}.${String(now % 1_000_000_000n).padStart(9, '0')}`
    fs.writeSync(file, [what, seconds, partition, ...more].join(' ') + '\n')
  }
  const kafka = new Kafka({ brokers: [address], logLevel: logLevel.ERROR, retry: { retries: 30, maxRetryTime: 1000 } })
  const consumer = kafka.consumer({
    groupId: group,
    sessionTimeout: SESSION_MS,
    rebalanceTimeout: 2 * SESSION_MS,
    heartbeatInterval: HEARTBEAT_MS,
    maxWaitTimeInMs: FETCH_WAIT_MS
  })
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    for (const partition of payload.memberAssignment[topic] ?? []) write('assigned', partition)
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
        for (const { offset } of part) write('read', batch.partition, offset)
        const next = `${BigInt(part.at(-1).offset) + 1n}`
        // what it throws makes the library join again
        await consumer.commitOffsets([{ topic, partition: batch.partition, offset: next }])
        write('committed', batch.partition, next)
        resolveOffset(part.at(-1).offset)
        await heartbeat()
      }
    }
  })
}

const [what, ...words] = process.argv.slice(2)
if (what === 'check' && words.length === 2) {
  new Checks(...words).all().then(code => process.exit(code))
} else if (what === 'member' && words.length === 5) {
  member(...words).catch(error => {
    console.error(error)
    process.exit(1)
  })
} else {
  console.error('usage: client.js check ADDRESS PREFIX | member ADDRESS GROUP TOPIC DIARY STRATEGY')
  process.exit(2)
}
