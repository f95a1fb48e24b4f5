// Package checks says what each client written in Go is tried with; tests/compat/kafkajs/client.js tries the same.
//
//	PROGRAM check ADDRESS PREFIX            a line for each check; exit code 1 when one has failed
//	PROGRAM member ADDRESS GROUP TOPIC DIARY STRATEGY [INSTANCE]
//
// Topics and groups that a check makes begin with PREFIX; PREFIX-others-CODEC was written by another client. A line is
// "ok NAME", "none NAME" for what the library has not, or "FAILED NAME: reason". A member writes the diary that
// tests/harness/today_member.py tells of, and leaves at SIGTERM.
package checks

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Count is how many messages are written with each codec.
const Count = 300

const firstMs = 1_700_000_000_000

// Codecs are those of the protocol.
var Codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

// Header is one of a message's.
type Header struct {
	Name  string
	Value []byte
}

// Message is a record as every client knows it; a nil key or value is null.
type Message struct {
	Offset     int64
	Key, Value []byte
	Headers    []Header
	TimeMs     int64
}

// Client is what a library does.
type Client interface {
	// Produce sends all to partition 0, waits for the acknowledgements and tells their offsets.
	Produce(topic, codec string, idempotent bool, messages []Message) ([]int64, error)
	// Read tells all from an offset up to the end, where it stops by itself.
	Read(topic string, offset int64) ([]Message, error)
	// OffsetAt is that of the first message at the time or later, -1 where there is none.
	OffsetAt(topic string, ms int64) (int64, error)
	CreateTopic(topic string, partitions int) error
	Topics() ([]string, error)
	// Partitions is how many the description of a topic has.
	Partitions(topic string) (int, error)
	DeleteTopic(topic string) error
	// ReadInGroup joins, tells the offsets of so many records of partition 0, commits behind the last, and leaves.
	ReadInGroup(group, topic string, count int) ([]int64, error)
	Groups() ([]string, error)
	// State is the group's, in the protocol's words.
	State(group string) (string, error)
	DeleteGroup(group string) error
	Member(group, topic string, diary *Diary, strategy, instance string, over <-chan os.Signal) error
}

// Messages have keys, headers and tombstones, and every one a time of its own; they are those of
// tests/integration/test_kafka_clients.py.
func Messages() []Message {
	found := make([]Message, Count)
	for number := range found {
		one := Message{Offset: int64(number), TimeMs: firstMs + int64(number)}
		if number%10 != 3 {
			one.Key = fmt.Appendf(nil, "key-%d", number)
		}
		if number%5 != 2 {
			one.Value = []byte(strings.Repeat(fmt.Sprintf("value %d ", number), number%11))
		}
		if number%3 == 1 {
			one.Headers = []Header{{"h", fmt.Appendf(nil, "%d", number)}, {"empty", []byte{}}}
		}
		found[number] = one
	}
	return found
}

func same(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }

func difference(found, wanted []Message) error {
	if len(found) != len(wanted) {
		return fmt.Errorf("%d messages, not %d", len(found), len(wanted))
	}
	for number, one := range found {
		other := wanted[number]
		headers := slices.EqualFunc(one.Headers, other.Headers, func(a, b Header) bool {
			return a.Name == b.Name && bytes.Equal(a.Value, b.Value)
		})
		if one.Offset != other.Offset || !same(one.Key, other.Key) || !same(one.Value, other.Value) ||
			!headers || one.TimeMs != other.TimeMs {
			return fmt.Errorf("%v, not %v", one, other)
		}
	}
	return nil
}

func inOrder(offsets []int64, first, count int64) error {
	if int64(len(offsets)) != count {
		return fmt.Errorf("%d offsets, not %d", len(offsets), count)
	}
	for number, offset := range offsets {
		if offset != first+int64(number) {
			return fmt.Errorf("offset %d, not %d", offset, first+int64(number))
		}
	}
	return nil
}

type run struct {
	client Client
	prefix string
	failed bool
}

func (r *run) check(name string, body func() error) {
	if err := body(); err != nil {
		r.failed = true
		fmt.Printf("FAILED %s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	fmt.Printf("ok %s\n", name)
}

func (r *run) codec(codec string) error {
	topic := r.prefix + "-" + codec
	if err := r.client.CreateTopic(topic, 1); err != nil {
		return err
	}
	offsets, err := r.client.Produce(topic, codec, false, Messages())
	if err == nil {
		err = inOrder(offsets, 0, Count)
	}
	if err != nil {
		return err
	}
	return r.reads(topic, 0)
}

func (r *run) reads(topic string, offset int64) error {
	found, err := r.client.Read(topic, offset)
	if err != nil {
		return err
	}
	return difference(found, Messages()[offset:])
}

func (r *run) offsets() error {
	for _, offset := range []int64{1, 150, Count - 1, Count} {
		if err := r.reads(r.prefix+"-gzip", offset); err != nil {
			return fmt.Errorf("from %d: %w", offset, err)
		}
	}
	return nil
}

func (r *run) times() error {
	wanted := map[int64]int64{0: 0, firstMs + 123: 123, firstMs + Count - 1: Count - 1, firstMs + Count: -1}
	for ms, offset := range wanted {
		found, err := r.client.OffsetAt(r.prefix+"-gzip", ms)
		if err != nil {
			return err
		}
		if found != offset {
			return fmt.Errorf("at %d: offset %d, not %d", ms, found, offset)
		}
	}
	return nil
}

func (r *run) resume() error {
	group, topic := r.prefix+"-middle", r.prefix+"-gzip"
	for _, part := range [][2]int64{{0, 40}, {40, 7}, {47, Count - 47}} {
		found, err := r.client.ReadInGroup(group, topic, int(part[1]))
		if err == nil {
			err = inOrder(found, part[0], part[1])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *run) idempotent() error {
	topic := r.prefix + "-idempotent"
	if err := r.client.CreateTopic(topic, 1); err != nil {
		return err
	}
	offsets, err := r.client.Produce(topic, "none", true, Messages())
	if err == nil {
		err = inOrder(offsets, 0, Count)
	}
	if err != nil {
		return err
	}
	return r.reads(topic, 0)
}

func (r *run) topics() error {
	topic := r.prefix + "-topic"
	for range 2 { // the name can be used again
		if err := r.client.CreateTopic(topic, 3); err != nil {
			return err
		}
		if err := r.client.CreateTopic(topic, 3); err == nil {
			return fmt.Errorf("it was made twice")
		}
		if names, err := r.client.Topics(); err != nil || !slices.Contains(names, topic) {
			return fmt.Errorf("listed are %v, %v", names, err)
		}
		if count, err := r.client.Partitions(topic); err != nil || count != 3 {
			return fmt.Errorf("%d partitions, %v", count, err)
		}
		if err := r.client.DeleteTopic(topic); err != nil {
			return err
		}
		if names, err := r.client.Topics(); err != nil || slices.Contains(names, topic) {
			return fmt.Errorf("listed after it was deleted: %v, %v", names, err)
		}
	}
	return nil
}

func (r *run) groups() error {
	group := r.prefix + "-middle"
	if names, err := r.client.Groups(); err != nil || !slices.Contains(names, group) {
		return fmt.Errorf("listed are %v, %v", names, err)
	}
	if state, err := r.client.State(group); err != nil || state != "Empty" {
		return fmt.Errorf("its state is %s, %v", state, err)
	}
	if err := r.client.DeleteGroup(group); err != nil {
		return err
	}
	if names, err := r.client.Groups(); err != nil || slices.Contains(names, group) {
		return fmt.Errorf("listed after it was deleted: %v, %v", names, err)
	}
	return nil
}

// All checks, and the program's exit code.
func All(client Client, prefix string) int {
	r := run{client: client, prefix: prefix}
	r.check("topics are made, listed, described and deleted", r.topics)
	for _, codec := range Codecs {
		r.check(codec+": written and read to the end", func() error { return r.codec(codec) })
	}
	for _, codec := range Codecs {
		r.check(codec+": read from another client", func() error { return r.reads(r.prefix+"-others-"+codec, 0) })
	}
	r.check("reading from any offset", r.offsets)
	r.check("offsets by time", r.times)
	r.check("a commit in mid-batch, and on from there", r.resume)
	r.check("the idempotent producer", r.idempotent)
	r.check("groups are listed, described and deleted", r.groups)
	if r.failed {
		return 1
	}
	return 0
}

// Within is how long a step may take.
const Within = 60 * time.Second
