package checks

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Times of a member, as tests/harness/today_member.py has them; Heartbeat is what lies between two.
const (
	Heartbeat     = 500 * time.Millisecond
	session       = 6 * time.Second
	staticSession = 30 * time.Second
)

// Session is what a member has to be heard of in; a static one's outlasts its next start.
func Session(instance string) time.Duration {
	if instance != "" {
		return staticSession
	}
	return session
}

// Diary is what a member has seen, in lines that are there whenever the program is killed.
type Diary struct {
	file *os.File
	lock sync.Mutex
}

func (d *Diary) line(what string, partition int32, more ...int64) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	text := fmt.Sprintf("%s %d.%09d %d", what, now.Sec, now.Nsec, partition)
	for _, each := range more {
		text += fmt.Sprintf(" %d", each)
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	if _, err := d.file.WriteString(text + "\n"); err != nil {
		panic(err)
	}
}

// Assigned is written before anything of the partition is fetched.
func (d *Diary) Assigned(partition int32) { d.line("assigned", partition) }

// Read is written before the record is committed.
func (d *Diary) Read(partition int32, offset int64) { d.line("read", partition, offset) }

// Committed is written after the broker has answered.
func (d *Diary) Committed(partition int32, next int64) { d.line("committed", partition, next) }

// Main is a client's program.
func Main(connect func(address string) Client) {
	arguments := os.Args[1:]
	switch {
	case len(arguments) == 3 && arguments[0] == "check":
		os.Exit(All(connect(arguments[1]), arguments[2]))
	case len(arguments) >= 6 && arguments[0] == "member":
		over := make(chan os.Signal, 1)
		signal.Notify(over, syscall.SIGTERM)
		file, err := os.OpenFile(arguments[4], os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			panic(err)
		}
		instance := ""
		if len(arguments) > 6 {
			instance = arguments[6]
		}
		client := connect(arguments[1])
		if err := client.Member(arguments[2], arguments[3], &Diary{file: file}, arguments[5], instance, over); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "usage: PROGRAM check ADDRESS PREFIX | member ADDRESS GROUP TOPIC DIARY STRATEGY [INSTANCE]")
		os.Exit(2)
	}
}
