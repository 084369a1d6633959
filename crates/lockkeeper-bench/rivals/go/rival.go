// One process of a crowd that fights for the lock of a Go library; its words are those of ../README.md.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sys/unix"
)

// The lock of one task.
type lock interface {
	take() error
	giveBack() error
}

type round struct {
	task             int
	asked, had, gave int64
}

func now() int64 {
	var time unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &time); err != nil {
		panic(err)
	}
	return time.Nano()
}

type onRedis struct{ mutex *redsync.Mutex }

func (it onRedis) take() error { return it.mutex.Lock() }

func (it onRedis) giveBack() error {
	_, err := it.mutex.Unlock()
	return err
}

type onEtcd struct{ mutex *concurrency.Mutex }

func (it onEtcd) take() error { return it.mutex.Lock(context.Background()) }

func (it onEtcd) giveBack() error { return it.mutex.Unlock(context.Background()) }

// A maker of locks, one for each task.
func locks(name, place, key string, ttl time.Duration) (func() (lock, error), error) {
	switch name {
	case "redsync":
		client := goredislib.NewClient(&goredislib.Options{Addr: place, PoolSize: 128})
		all := redsync.New(goredis.NewPool(client))
		return func() (lock, error) {
			// For ever: as the others, it waits until it has the lock.
			return onRedis{all.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(1<<30))}, nil
		}, client.Ping(context.Background()).Err()
	case "etcd-concurrency":
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{place}})
		return func() (lock, error) {
			// Mutexes of one session are the same holder.
			session, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl.Seconds())))
			if err != nil {
				return nil, err
			}
			return onEtcd{concurrency.NewMutex(session, "/rivals/"+key)}, nil
		}, err
	}
	return nil, fmt.Errorf("%q is no lock", name)
}

func addOne(file *os.File) error {
	var bytes [8]byte
	if _, err := file.ReadAt(bytes[:], 0); err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(bytes[:], binary.LittleEndian.Uint64(bytes[:])+1)
	_, err := file.WriteAt(bytes[:], 0)
	return err
}

func fightAlone(task int, it lock, until int64, file *os.File) (rounds []round, err error) {
	for {
		asked := now()
		if until <= asked {
			return
		}
		if err = it.take(); err != nil {
			return
		}
		had := now()
		if err = addOne(file); err != nil {
			return
		}
		rounds = append(rounds, round{task, asked, had, now()})
		if err = it.giveBack(); err != nil {
			return
		}
	}
}

func fight(all []lock, until int64, file *os.File) {
	parts, refused := make([][]round, len(all)), make([]int, len(all))
	var group sync.WaitGroup
	count := 0
	for task := range all {
		group.Add(1)
		go func() {
			defer group.Done()
			var err error
			if parts[task], err = fightAlone(task, all[task], until, file); err != nil {
				fmt.Fprintln(os.Stderr, err)
				refused[task] = 1
			}
		}()
	}
	group.Wait()
	sum := 0
	for task := range all {
		count += len(parts[task])
		sum += refused[task]
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	fmt.Fprintln(out, count, sum)
	for _, part := range parts {
		for _, it := range part {
			fmt.Fprintln(out, it.task, it.asked, it.had, it.gave)
		}
	}
}

func run(name, place, key, ttl, tasks, path string) error {
	millis, err := strconv.Atoi(ttl)
	if err != nil {
		return err
	}
	count, err := strconv.Atoi(tasks)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	newLock, err := locks(name, place, key, time.Duration(millis)*time.Millisecond)
	if err != nil {
		return err
	}
	all := make([]lock, count)
	for task := range all {
		if all[task], err = newLock(); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := strings.Fields(in.Text())
		if words[0] == "fight" {
			until, err := strconv.ParseInt(words[1], 10, 64)
			if err != nil {
				return err
			}
			fight(all, until, file)
			continue
		}
		if err := all[0].take(); err != nil {
			return err
		}
		if words[0] == "hold" {
			fmt.Println("held")
		} else {
			fmt.Println("had", now())
		}
	}
	return nil
}

func main() {
	if len(os.Args) != 8 {
		fmt.Fprintln(os.Stderr, "usage: LOCK PLACE KEY TTL TASKS FILE OFFSET")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
