// What each client written in JavaScript is tried with; tests/compat/go/checks tells the same, with the same lines and
// the same diary:
//
//   client check ADDRESS PREFIX
//   client member ADDRESS GROUP TOPIC DIARY STRATEGY [INSTANCE]
//
// A client has the methods of a library here: createTopic, topics, partitions, deleteTopic, produce, read, offsetAt,
// readInGroup, groups, state, deleteGroup and member; `codecs` are those that it has, `afterTheEnd` is what it tells
// when it is asked for the offset of a time beyond the last.
'use strict'

const fs = require('node:fs')

const COUNT = 300
const FIRST_MS = 1_700_000_000_000
const WITHIN_MS = 60_000
const ALL_CODECS = ['none', 'gzip', 'snappy', 'lz4', 'zstd']
const BATCH = 20
const HEARTBEAT_MS = 500
const FETCH_WAIT_MS = 50
// A static member's session outlasts its next start.
const sessionMs = instance => (instance ? 30_000 : 6_000)

// headers are pairs of a name and bytes; null keys and values are null.
const messages = Array.from({ length: COUNT }, (_, number) => ({
  offset: number,
  key: number % 10 === 3 ? null : Buffer.from(`key-${number}`),
  value: number % 5 === 2 ? null : Buffer.from(`value ${number} `.repeat(number % 11)),
  headers: number % 3 === 1 ? [['h', Buffer.from(`${number}`)], ['empty', Buffer.alloc(0)]] : [],
  timestamp: FIRST_MS + number
}))

function expect (holds, what) {
  if (!holds) throw new Error(what)
}

function text (one) {
  const shown = bytes => (bytes === null ? null : bytes.toString('latin1'))
  const headers = one.headers.map(([name, value]) => [name, shown(value)])
  return JSON.stringify([one.offset, shown(one.key), shown(one.value), headers, one.timestamp])
}

function expectSame (found, wanted) {
  expect(found.length === wanted.length, `${found.length} messages, not ${wanted.length}`)
  found.forEach((one, number) => {
    expect(text(one) === text(wanted[number]), `${text(one)}, not ${text(wanted[number])}`)
  })
}

function expectInOrder (offsets, first, count) {
  expect(offsets.length === count, `${offsets.length} offsets, not ${count}`)
  expect(offsets.every((offset, number) => offset === first + number), `offsets were ${offsets}`)
}

function within (promise, what) {
  let timer
  const late = new Promise((resolve, reject) => {
    timer = setTimeout(() => reject(new Error(`not in time: ${what()}`)), WITHIN_MS)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

class Diary {
  constructor (path) {
    this.file = fs.openSync(path, 'a', 0o600)
  }

  write (what, partition, ...more) {
    const now = process.hrtime.bigint() // the machine's monotonic clock
    const seconds = `${now / 1_000_000_000n}.${String(now % 1_000_000_000n).padStart(9, '0')}`
    fs.writeSync(this.file, [what, seconds, partition, ...more].join(' ') + '\n')
  }
}

class Checks {
  constructor (client, prefix) {
    this.client = client
    this.prefix = prefix
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

  async topics () {
    const topic = `${this.prefix}-topic`
    for (let turn = 0; turn < 2; turn++) { // the name can be used again
      await this.client.createTopic(topic, 3)
      const again = await this.client.createTopic(topic, 3).then(() => true, () => false)
      expect(!again, 'it was made twice')
      expect((await this.client.topics()).includes(topic), 'it is not listed')
      const partitions = await this.client.partitions(topic)
      expect(partitions === 3, `${partitions} partitions`)
      await this.client.deleteTopic(topic)
      expect(!(await this.client.topics()).includes(topic), 'listed after it was deleted')
    }
  }

  async written (topic, codec, idempotent) {
    await this.client.createTopic(topic, 1)
    const base = await this.client.produce(topic, codec, idempotent, messages)
    expect(base === 0, `the first has offset ${base}`)
    expectSame(await this.client.read(topic, 0), messages)
  }

  async times () {
    const beyond = this.client.afterTheEnd
    for (const [ms, offset] of [[0, 0], [FIRST_MS + 123, 123], [FIRST_MS + COUNT - 1, COUNT - 1], [FIRST_MS + COUNT, beyond]]) {
      const found = await this.client.offsetAt(`${this.prefix}-gzip`, ms)
      expect(found === offset, `at ${ms}: offset ${found}, not ${offset}`)
    }
  }

  async resume () {
    let first = 0
    for (const count of [40, 7, COUNT - 47]) {
      expectInOrder(await this.client.readInGroup(`${this.prefix}-middle`, `${this.prefix}-gzip`, count), first, count)
      first += count
    }
  }

  async groups () {
    const group = `${this.prefix}-middle`
    expect((await this.client.groups()).includes(group), 'it is not listed')
    const state = await this.client.state(group)
    expect(state.toLowerCase() === 'empty', `its state is ${state}`)
    await this.client.deleteGroup(group)
    expect(!(await this.client.groups()).includes(group), 'listed after it was deleted')
  }

  async all () {
    const { client, prefix } = this
    const missing = ALL_CODECS.filter(codec => !client.codecs.includes(codec))
    await this.check('topics are made, listed, described and deleted', () => this.topics())
    for (const codec of client.codecs) {
      await this.check(`${codec}: written and read to the end`, () => this.written(`${prefix}-${codec}`, codec, false))
    }
    for (const codec of missing) console.log(`none ${codec}: written and read to the end`)
    for (const codec of client.codecs) {
      await this.check(`${codec}: read from another client`, async () => {
        expectSame(await client.read(`${prefix}-others-${codec}`, 0), messages)
      })
    }
    for (const codec of missing) console.log(`none ${codec}: read from another client`)
    await this.check('reading from any offset', async () => {
      for (const offset of [1, 150, COUNT - 1, COUNT]) {
        expectSame(await client.read(`${prefix}-gzip`, offset), messages.slice(offset))
      }
    })
    await this.check('offsets by time', () => this.times())
    await this.check('a commit in mid-batch, and on from there', () => this.resume())
    await this.check('the idempotent producer', () => this.written(`${prefix}-idempotent`, 'none', true))
    await this.check('groups are listed, described and deleted', () => this.groups())
    await client.close()
    return this.failed ? 1 : 0
  }
}

function main (connect) {
  const [what, ...words] = process.argv.slice(2)
  if (what === 'check' && words.length === 2) {
    new Checks(connect(words[0]), words[1]).all().then(code => process.exit(code))
  } else if (what === 'member' && (words.length === 5 || words.length === 6)) {
    const [address, group, topic, path, strategy, instance] = words
    connect(address).member(group, topic, new Diary(path), strategy, instance).catch(error => {
      console.error(error)
      process.exit(1)
    })
  } else {
    console.error('usage: client check ADDRESS PREFIX | member ADDRESS GROUP TOPIC DIARY STRATEGY [INSTANCE]')
    process.exit(2)
  }
}

module.exports = { ALL_CODECS, BATCH, COUNT, FETCH_WAIT_MS, HEARTBEAT_MS, expect, main, sessionMs, within }
