// The client sarama, tried by package checks.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"fastlog/compat/checks"
)

const (
	batch     = 20
	flushEach = 200 * time.Millisecond
)

var codecs = map[string]sarama.CompressionCodec{
	"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
	"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
}

type client struct{ address string }

func settings() *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.MaxVersion
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	made.Consumer.Offsets.AutoCommit.Enable = false
	made.Consumer.Return.Errors = true
	return made
}

func (c client) addresses() []string { return []string{c.address} }

func (c client) Produce(topic, codec string, idempotent bool, messages []checks.Message) ([]int64, error) {
	config := settings()
	config.Producer.Compression = codecs[codec]
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Producer.Flush.Frequency = 20 * time.Millisecond
	config.Producer.RequiredAcks = sarama.WaitForLocal
	if idempotent {
		config.Producer.RequiredAcks = sarama.WaitForAll
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
	}
	producer, err := sarama.NewSyncProducer(c.addresses(), config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	sent := make([]*sarama.ProducerMessage, len(messages))
	for number, one := range messages {
		record := &sarama.ProducerMessage{Topic: topic, Timestamp: time.UnixMilli(one.TimeMs)}
		if one.Key != nil {
			record.Key = sarama.ByteEncoder(one.Key)
		}
		if one.Value != nil {
			record.Value = sarama.ByteEncoder(one.Value)
		}
		for _, header := range one.Headers {
			record.Headers = append(record.Headers, sarama.RecordHeader{Key: []byte(header.Name), Value: header.Value})
		}
		sent[number] = record
	}
	if err := producer.SendMessages(sent); err != nil {
		return nil, err
	}
	offsets := make([]int64, len(sent))
	for number, record := range sent {
		offsets[number] = record.Offset
	}
	return offsets, nil
}

func (c client) Read(topic string, offset int64) ([]checks.Message, error) {
	made, err := sarama.NewClient(c.addresses(), settings())
	if err != nil {
		return nil, err
	}
	defer made.Close()
	end, err := made.GetOffset(topic, 0, sarama.OffsetNewest)
	if err != nil || offset == end {
		return nil, err
	}
	consumer, err := sarama.NewConsumerFromClient(made)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	part, err := consumer.ConsumePartition(topic, 0, offset)
	if err != nil {
		return nil, err
	}
	defer part.Close()
	var found []checks.Message
	for deadline := time.After(checks.Within); offset < end; {
		select {
		case record := <-part.Messages():
			one := checks.Message{
				Offset: record.Offset, Key: record.Key, Value: record.Value, TimeMs: record.Timestamp.UnixMilli(),
			}
			for _, header := range record.Headers {
				one.Headers = append(one.Headers, checks.Header{Name: string(header.Key), Value: header.Value})
			}
			found = append(found, one)
			offset = record.Offset + 1
		case err := <-part.Errors():
			return nil, err
		case <-deadline:
			return nil, fmt.Errorf("at %d of %d in time", offset, end)
		}
	}
	return found, nil
}

func (c client) OffsetAt(topic string, ms int64) (int64, error) {
	made, err := sarama.NewClient(c.addresses(), settings())
	if err != nil {
		return 0, err
	}
	defer made.Close()
	return made.GetOffset(topic, 0, ms)
}

// ask has an administrator's client for one question.
func (c client) ask(question func(sarama.ClusterAdmin) error) error {
	admin, err := sarama.NewClusterAdmin(c.addresses(), settings())
	if err != nil {
		return err
	}
	defer admin.Close()
	return question(admin)
}

func (c client) CreateTopic(topic string, partitions int) error {
	return c.ask(func(admin sarama.ClusterAdmin) error {
		detail := &sarama.TopicDetail{NumPartitions: int32(partitions), ReplicationFactor: 1}
		return admin.CreateTopic(topic, detail, false)
	})
}

func (c client) Topics() (names []string, err error) {
	err = c.ask(func(admin sarama.ClusterAdmin) error {
		found, err := admin.ListTopics()
		names = slices.Collect(maps.Keys(found))
		return err
	})
	return names, err
}

func (c client) Partitions(topic string) (count int, err error) {
	err = c.ask(func(admin sarama.ClusterAdmin) error {
		found, err := admin.DescribeTopics([]string{topic})
		if err != nil {
			return err
		}
		if count = len(found[0].Partitions); found[0].Err != sarama.ErrNoError {
			return found[0].Err
		}
		return nil
	})
	return count, err
}

func (c client) DeleteTopic(topic string) error {
	return c.ask(func(admin sarama.ClusterAdmin) error { return admin.DeleteTopic(topic) })
}

// some reads so many records and commits behind the last.
type some struct {
	count   int
	offsets []int64
	done    context.CancelFunc
}

func (*some) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*some) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (s *some) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for record := range claim.Messages() {
		s.offsets = append(s.offsets, record.Offset)
		if len(s.offsets) == s.count {
			session.MarkMessage(record, "")
			session.Commit()
			s.done()
			return nil
		}
	}
	return nil
}

func (c client) ReadInGroup(group, topic string, count int) ([]int64, error) {
	made, err := sarama.NewConsumerGroup(c.addresses(), group, settings())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), checks.Within)
	defer cancel()
	handler := &some{count: count, done: cancel}
	for ctx.Err() == nil {
		if err := made.Consume(ctx, []string{topic}, handler); err != nil && ctx.Err() == nil {
			return nil, err
		}
	}
	return handler.offsets, made.Close()
}

func (c client) Groups() (names []string, err error) {
	err = c.ask(func(admin sarama.ClusterAdmin) error {
		found, err := admin.ListConsumerGroups()
		names = slices.Collect(maps.Keys(found))
		return err
	})
	return names, err
}

func (c client) State(group string) (state string, err error) {
	err = c.ask(func(admin sarama.ClusterAdmin) error {
		found, err := admin.DescribeConsumerGroups([]string{group})
		if err == nil {
			state = found[0].State
		}
		return err
	})
	return state, err
}

func (c client) DeleteGroup(group string) error {
	return c.ask(func(admin sarama.ClusterAdmin) error { return admin.DeleteConsumerGroup(group) })
}

// member reads and commits until the session ends.
type member struct {
	diary   *checks.Diary
	manager *commits
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	for _, partitions := range session.Claims() {
		for _, partition := range partitions {
			m.diary.Assigned(partition)
		}
	}
	return nil
}

func (*member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	tick := time.NewTicker(flushEach)
	defer tick.Stop()
	var waiting int
	var last *sarama.ConsumerMessage
	commit := func() {
		if waiting == 0 {
			return
		}
		waiting = 0
		if m.manager.commit(session, last) {
			m.diary.Committed(last.Partition, last.Offset+1)
		}
	}
	for {
		select {
		case record, more := <-claim.Messages():
			if !more {
				return nil
			}
			m.diary.Read(record.Partition, record.Offset)
			last = record
			if waiting++; waiting == batch {
				commit()
			}
		case <-tick.C:
			commit()
		case <-session.Context().Done():
			return nil
		}
	}
}

// commits asks the coordinator itself, as the session's Commit does not tell whether it was answered.
type commits struct {
	client          sarama.Client
	group, instance string
}

func (c *commits) commit(session sarama.ConsumerGroupSession, record *sarama.ConsumerMessage) bool {
	coordinator, err := c.client.Coordinator(c.group)
	if err != nil {
		return false
	}
	request := &sarama.OffsetCommitRequest{
		Version: 7, ConsumerGroup: c.group, ConsumerID: session.MemberID(), ConsumerGroupGeneration: session.GenerationID(),
	}
	if c.instance != "" {
		request.GroupInstanceId = &c.instance
	}
	request.AddBlockWithLeaderEpoch(record.Topic, record.Partition, record.Offset+1, -1, 0, "")
	answer, err := coordinator.CommitOffset(request)
	if err != nil {
		_ = coordinator.Close()
		_ = c.client.RefreshCoordinator(c.group)
		return false
	}
	return answer.Errors[record.Topic][record.Partition] == sarama.ErrNoError
}

func (c client) Member(
	group, topic string, diary *checks.Diary, strategy, instance string, over <-chan os.Signal,
) error {
	if strategy != "range" {
		return fmt.Errorf("no strategy %q", strategy)
	}
	config := settings()
	config.Consumer.Group.Session.Timeout = checks.Session(instance)
	config.Consumer.Group.Heartbeat.Interval = checks.Heartbeat
	config.Consumer.Group.Rebalance.Timeout = 2 * checks.Session(instance)
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	config.Consumer.Group.InstanceId = instance
	config.Consumer.MaxWaitTime = flushEach
	config.Consumer.Return.Errors = false
	made, err := sarama.NewClient(c.addresses(), config)
	if err != nil {
		return err
	}
	joined, err := sarama.NewConsumerGroupFromClient(group, made)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-over
		cancel()
	}()
	handler := &member{diary, &commits{made, group, instance}}
	for ctx.Err() == nil {
		err := joined.Consume(ctx, []string{topic}, handler)
		if err != nil && !errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "consume:", err)
			time.Sleep(checks.Heartbeat) // a coordinator that died: again, as its documentation asks for
		}
	}
	if err := joined.Close(); err != nil {
		return err
	}
	return made.Close()
}

func main() { checks.Main(func(address string) checks.Client { return client{address} }) }
