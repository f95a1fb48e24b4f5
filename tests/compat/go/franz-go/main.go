// The client franz-go, tried by package checks.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"fastlog/compat/checks"
)

const (
	batch   = 20
	pollFor = 200 * time.Millisecond
)

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

type client struct{ address string }

func within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), checks.Within)
}

func (c client) connect(more ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(c.address)}, more...)...)
}

// ask has an administrator's client for one question.
func (c client) ask(question func(context.Context, *kadm.Client) error) error {
	made, err := c.connect()
	if err != nil {
		return err
	}
	defer made.Close()
	ctx, cancel := within()
	defer cancel()
	return question(ctx, kadm.NewClient(made))
}

func (c client) Produce(topic, codec string, idempotent bool, messages []checks.Message) ([]int64, error) {
	options := []kgo.Opt{
		kgo.ProducerBatchCompression(codecs[codec]), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(20 * time.Millisecond),
	}
	if !idempotent {
		options = append(options, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()),
			kgo.MaxProduceRequestsInflightPerBroker(1))
	}
	made, err := c.connect(options...)
	if err != nil {
		return nil, err
	}
	defer made.Close()
	records := make([]*kgo.Record, len(messages))
	for number, one := range messages {
		record := &kgo.Record{Topic: topic, Key: one.Key, Value: one.Value, Timestamp: time.UnixMilli(one.TimeMs)}
		for _, header := range one.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: header.Name, Value: header.Value})
		}
		records[number] = record
	}
	ctx, cancel := within()
	defer cancel()
	if err := made.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return nil, err
	}
	offsets := make([]int64, len(records))
	for number, record := range records {
		if idempotent && record.ProducerID < 0 {
			return nil, errors.New("it has no producer id")
		}
		offsets[number] = record.Offset
	}
	return offsets, nil
}

func (c client) Read(topic string, offset int64) ([]checks.Message, error) {
	var end int64
	err := c.ask(func(ctx context.Context, admin *kadm.Client) error {
		listed, err := admin.ListEndOffsets(ctx, topic)
		if err != nil {
			return err
		}
		found, _ := listed.Lookup(topic, 0)
		end = found.Offset
		return found.Err
	})
	if err != nil {
		return nil, err
	}
	made, err := c.connect(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(offset)}}))
	if err != nil {
		return nil, err
	}
	defer made.Close()
	ctx, cancel := within()
	defer cancel()
	var found []checks.Message
	for offset < end {
		fetches := made.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			one := checks.Message{
				Offset: record.Offset, Key: record.Key, Value: record.Value, TimeMs: record.Timestamp.UnixMilli(),
			}
			for _, header := range record.Headers {
				one.Headers = append(one.Headers, checks.Header{Name: header.Key, Value: header.Value})
			}
			found = append(found, one)
			offset = record.Offset + 1
		})
	}
	return found, nil
}

func (c client) OffsetAt(topic string, ms int64) (offset int64, err error) {
	err = c.ask(func(ctx context.Context, admin *kadm.Client) error {
		// kadm puts the end where the broker says that there is none
		listed, err := admin.ListOffsetsAfterMilli(ctx, ms, topic)
		if err != nil {
			return err
		}
		found, _ := listed.Lookup(topic, 0)
		if offset = found.Offset; found.Timestamp < 0 {
			offset = -1
		}
		return found.Err
	})
	return offset, err
}

func (c client) CreateTopic(topic string, partitions int) error {
	return c.ask(func(ctx context.Context, admin *kadm.Client) error {
		_, err := admin.CreateTopic(ctx, int32(partitions), 1, nil, topic)
		return err
	})
}

func (c client) Topics() (names []string, err error) {
	err = c.ask(func(ctx context.Context, admin *kadm.Client) error {
		found, err := admin.ListTopics(ctx)
		names = found.Names()
		return err
	})
	return names, err
}

func (c client) Partitions(topic string) (count int, err error) {
	err = c.ask(func(ctx context.Context, admin *kadm.Client) error {
		found, err := admin.ListTopics(ctx, topic)
		if err != nil {
			return err
		}
		count = len(found[topic].Partitions)
		return found[topic].Err
	})
	return count, err
}

func (c client) DeleteTopic(topic string) error {
	return c.ask(func(ctx context.Context, admin *kadm.Client) error {
		_, err := admin.DeleteTopic(ctx, topic)
		return err
	})
}

func (c client) ReadInGroup(group, topic string, count int) ([]int64, error) {
	made, err := c.connect(kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer made.Close()
	ctx, cancel := within()
	defer cancel()
	var offsets []int64
	for len(offsets) < count {
		fetches := made.PollRecords(ctx, count-len(offsets))
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		var last *kgo.Record
		fetches.EachRecord(func(record *kgo.Record) {
			offsets = append(offsets, record.Offset)
			last = record
		})
		if len(offsets) == count {
			if err := made.CommitRecords(ctx, last); err != nil {
				return nil, err
			}
		}
	}
	return offsets, made.LeaveGroupContext(ctx)
}

func (c client) Groups() (names []string, err error) {
	err = c.ask(func(ctx context.Context, admin *kadm.Client) error {
		found, err := admin.ListGroups(ctx)
		names = found.Groups()
		return err
	})
	return names, err
}

func (c client) State(group string) (state string, err error) {
	err = c.ask(func(ctx context.Context, admin *kadm.Client) error {
		found, err := admin.DescribeGroups(ctx, group)
		if err != nil {
			return err
		}
		state = found[group].State
		return found[group].Err
	})
	return state, err
}

func (c client) DeleteGroup(group string) error {
	return c.ask(func(ctx context.Context, admin *kadm.Client) error {
		_, err := admin.DeleteGroup(ctx, group)
		return err
	})
}

func (c client) Member(
	group, topic string, diary *checks.Diary, strategy, instance string, over <-chan os.Signal,
) error {
	balancers := map[string]kgo.GroupBalancer{
		"range": kgo.RangeBalancer(), "cooperative-sticky": kgo.CooperativeStickyBalancer(),
	}
	if balancers[strategy] == nil {
		return fmt.Errorf("no strategy %q", strategy)
	}
	session := checks.Session(instance)
	options := []kgo.Opt{
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(), kgo.Balancers(balancers[strategy]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(session), kgo.HeartbeatInterval(checks.Heartbeat),
		kgo.RebalanceTimeout(2 * session), kgo.FetchMaxWait(pollFor), kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, assigned map[string][]int32) {
			for _, partition := range assigned[topic] {
				diary.Assigned(partition)
			}
		}),
	}
	if instance != "" {
		options = append(options, kgo.InstanceID(instance))
	}
	made, err := c.connect(options...)
	if err != nil {
		return err
	}
	for {
		select {
		case <-over:
			made.AllowRebalance()
			made.Close() // leaves, unless it is a static member
			return nil
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), pollFor)
		fetches := made.PollRecords(ctx, batch)
		cancel()
		following := map[int32]*kgo.Record{}
		fetches.EachRecord(func(record *kgo.Record) {
			diary.Read(record.Partition, record.Offset)
			following[record.Partition] = record
		})
		if len(following) > 0 {
			records := make([]*kgo.Record, 0, len(following))
			for _, record := range following {
				records = append(records, record)
			}
			ctx, cancel := context.WithTimeout(context.Background(), checks.Session(""))
			err := made.CommitRecords(ctx, records...)
			cancel()
			switch {
			case err == nil:
				for partition, record := range following {
					diary.Committed(partition, record.Offset+1)
				}
			case errors.As(err, new(*kerr.Error)), errors.Is(err, context.DeadlineExceeded):
				// a rebalance, or a coordinator that died: whoever has it now reads it again
			default:
				fmt.Fprintln(os.Stderr, "commit:", err)
			}
		}
		made.AllowRebalance()
	}
}

func main() { checks.Main(func(address string) checks.Client { return client{address} }) }
