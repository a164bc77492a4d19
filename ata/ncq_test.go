package ata_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"lunlab/ata"
	"lunlab/lun/store"
)

// gate is a store whose reads wait until it is opened, and tell when they have come.
type gate struct {
	store.Store
	came chan int64
	open chan struct{}
}

func newGate(t testing.TB, size int64) *gate {
	return &gate{mustMem(t, size), make(chan int64, 64), make(chan struct{})}
}

func (g *gate) Blocking() bool { return true }

func (g *gate) ReadAt(p []byte, off int64) (int, error) {
	g.came <- off
	<-g.open
	return g.Store.ReadAt(p, off)
}

// issue issues a task and returns a channel that it comes back by.
func (h *host) issue(f ata.Taskfile, data []byte) (*ata.Task, chan *ata.Task) {
	done := make(chan *ata.Task, 1)
	t := &ata.Task{Taskfile: f, Done: func(t *ata.Task) { done <- t }}
	if out, _ := h.drive.DataLength(&f); out > 0 {
		t.DataOut = [][]byte{data}
	} else {
		t.DataIn = [][]byte{data}
	}
	h.drive.Issue(t)
	return t, done
}

// errorLog checks the NCQ Command Error log and returns it.
func (h *host) errorLog() []byte {
	h.t.Helper()
	b := h.log(0x10, 0, 1)
	sum := byte(0)
	for _, x := range b {
		sum += x
	}
	if sum != 0 {
		h.t.Errorf("the log's sum is %#x", sum)
	}
	return b
}

// TestQueueError has one of three queued commands fail, and goes on after the log.
func TestQueueError(t *testing.T) {
	for _, autosense := range []bool{false, true} {
		g := newGate(t, 1<<20)
		h := hostOf(t, g, ata.Options{})
		if autosense {
			h.good(ata.Taskfile{Command: 0xef, Feature: 0xc3, Count: 1}, nil)
		}
		h.drive.Spoil(500, 1)
		var others []chan *ata.Task
		for _, tag := range []int{3, 31} {
			_, done := h.issue(queued(0x60, tag, uint64(tag), 1), make([]byte, 512))
			others = append(others, done)
			<-g.came
		}
		f := queued(0x60, 9, 498, 4)
		f.Count |= 0x8000 // high priority
		_, done := h.issue(f, make([]byte, 4*512))
		bad := <-done
		if bad.Ending != ata.DeviceBitsFIS || bad.Answer.Error != ata.ErrorUNC {
			t.Fatalf("ending %d, %+v", bad.Ending, bad.Answer)
		}
		if sense := bad.Answer.Status&ata.StatusSense != 0; sense != autosense {
			t.Errorf("status %#x with autosense %v", bad.Answer.Status, autosense)
		}
		if fis := bad.AppendFIS(nil); len(fis) != 8 || fis[0] != 0xa1 || fis[2]&1 != 1 || fis[3] != 0x40 || binary.LittleEndian.Uint32(fis[4:]) != 0 {
			t.Errorf("FIS %x", fis)
		}
		for _, f := range []ata.Taskfile{queued(0x60, 0, 0, 1), cmd48(0x25, 0, 1), {Command: 0xec}, readLog(0x11, 0, 1)} {
			if r := h.fails(f, nil, ata.ErrorABRT); !r.Halted || r.Ending != ata.RegisterFIS {
				t.Errorf("%+v in a halted queue: %+v", f, r)
			}
		}
		// The log is read only when the others are no longer in the store.
		_, read := h.issue(readLog(0x10, 0, 1), make([]byte, 512))
		select {
		case <-read:
			t.Error("the log was read while commands that were aborted were running")
		default:
		}
		close(g.open)
		for _, done := range others {
			if r := <-done; r.Ending != ata.NoAnswer || r.AppendFIS(nil) != nil {
				t.Errorf("another command ended by %d", r.Ending)
			}
		}
		b := (<-read).DataIn[0]
		if b[0] != 9 || b[2]&0x71 != 0x51 || b[3] != ata.ErrorUNC || binary.LittleEndian.Uint16(b[4:]) != 500 || b[7] != 0x40 || b[13] != 0x80 {
			t.Errorf("log %x", b[:20])
		}
		if b[14] != 3 || b[15] != 0x11 || b[16] != 0 {
			t.Errorf("sense data %x", b[14:17])
		}
		h.good(queued(0x60, 0, 0, 1), nil)
	}
}

// TestQueueAbuse breaks the rules of the queue.
func TestQueueAbuse(t *testing.T) {
	for _, c := range []struct {
		name   string
		abuse  ata.Taskfile
		first  byte
		answer ata.Ending
	}{
		{"a tag twice", queued(0x60, 5, 0, 1), 5, ata.RegisterFIS},
		{"a command that isn't queued", cmd48(0x25, 0, 1), 0x80, ata.RegisterFIS},
		{"IDENTIFY DEVICE", ata.Taskfile{Command: 0xec}, 0x80, ata.RegisterFIS},
		{"a tag that is too high", queued(0x61, 16, 0, 1), 16, ata.RegisterFIS},
		{"a command that isn't there", ata.Taskfile{Command: 0xf7}, 0x80, ata.RegisterFIS},
		{"the error log", readLog(0x10, 0, 1), 0x80, ata.RegisterFIS},
	} {
		g := newGate(t, 1<<20)
		h := hostOf(t, g, ata.Options{QueueDepth: 16})
		_, done := h.issue(queued(0x60, 5, 0, 1), make([]byte, 512))
		<-g.came
		_, abused := h.issue(c.abuse, make([]byte, 512))
		r := <-abused
		if r.Ending != c.answer || r.Answer.Error != ata.ErrorABRT || r.Answer.Status&ata.StatusERR == 0 {
			t.Errorf("%s: ending %d, %+v", c.name, r.Ending, r.Answer)
		}
		close(g.open)
		if r := <-done; r.Ending != ata.NoAnswer {
			t.Errorf("%s: the command before ended by %d", c.name, r.Ending)
		}
		if b := h.errorLog(); b[0] != c.first {
			t.Errorf("%s: log %x", c.name, b[:20])
		}
		h.good(queued(0x60, 5, 0, 1), nil)
	}
}

// TestReset resets the drive amid commands.
func TestReset(t *testing.T) {
	for _, kind := range []ata.Reset{ata.SoftReset, ata.HardReset} {
		g := newGate(t, 1<<20)
		h := hostOf(t, g, ata.Options{})
		var all []chan *ata.Task
		for tag := range 4 {
			_, done := h.issue(queued(0x60, tag, 0, 1), make([]byte, 512))
			all = append(all, done)
			<-g.came
		}
		reset := make(chan ata.Registers)
		go func() { reset <- h.drive.Reset(kind) }()
		for h.drive.Queued() != 0 {
			runtime.Gosched()
		}
		select {
		case <-reset:
			t.Error("the reset has ended while commands are in the store")
		default:
		}
		close(g.open)
		r := <-reset
		if r.Status != 0x50 || r.Error != 1 || r.Count != 1 || r.LBA != 1 || r.Device != 0 {
			t.Errorf("signature %+v", r)
		}
		for _, done := range all {
			if r := <-done; r.Ending != ata.NoAnswer {
				t.Errorf("ended by %d", r.Ending)
			}
		}
		h.good(cmd48(0x25, 0, 1), nil)
	}
}

// TestQueuedTrimAndLogs is SEND and RECEIVE FPDMA QUEUED.
func TestQueuedTrimAndLogs(t *testing.T) {
	h := newHost(t, 1<<20, ata.Options{Trim: true})
	h.good(cmd48(0x35, 0, 64), pattern(64*512, 1))
	ranges := make([]byte, 512)
	binary.LittleEndian.PutUint64(ranges, 8|16<<48)
	binary.LittleEndian.PutUint64(ranges[16:], 40|1<<48)
	f := queued(0x64, 7, 0, 1)
	f.Aux = 1
	h.good(f, ranges)
	want := pattern(64*512, 1)
	clear(want[8*512 : 24*512])
	clear(want[40*512 : 41*512])
	h.same("trimmed", h.good(cmd48(0x25, 0, 64), nil), want)

	read := queued(0x65, 3, 0x30|3<<8, 2)
	read.Count |= 1 << 8
	h.same("queued READ LOG", h.good(read, nil), h.log(0x30, 3, 2))
	write := queued(0x64, 3, 0x85|2<<8, 2)
	write.Count |= 2 << 8
	h.good(write, pattern(1024, 9))
	h.same("queued WRITE LOG", h.log(0x85, 2, 2), pattern(1024, 9))

	f.Aux = 0
	h.fails(f, ranges, ata.ErrorABRT)
	if b := h.errorLog(); b[0] != 7 || b[14] != 5 || b[15] != 0x24 {
		t.Errorf("log %x", b[:20])
	}
}

// TestQueueModel issues random commands from many goroutines, some of which fail, and
// recovers as a host does: at the end each block holds what was last written to it.
func TestQueueModel(t *testing.T) {
	const blocks = 256
	h := newHost(t, blocks*512, ata.Options{})
	var recovery sync.RWMutex // held for reading by those who have a tag
	var wg sync.WaitGroup
	errs := make(chan error, 32)
	for tag := range 32 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			// Each has its own 8 blocks.
			r := rand.New(rand.NewPCG(1, uint64(tag)))
			base, want := uint64(tag*8), make([]byte, 8*512)
			for range 400 {
				f := queued(0x60, tag, base, 8)
				data := make([]byte, 8*512)
				switch r.IntN(8) {
				case 0, 1, 2:
					f.Command = 0x61
					data = pattern(8*512, byte(r.Uint32()))
				case 3:
					h.drive.Spoil(base+uint64(r.IntN(8)), 1)
				}
				for {
					recovery.RLock()
					task := &ata.Task{Taskfile: f, DataIn: pieces(data), DataOut: pieces(data)}
					h.drive.Do(task)
					recovery.RUnlock()
					if !task.Failed() {
						break
					}
					if task.Ending == ata.NoAnswer || task.Halted {
						runtime.Gosched()
						continue
					}
					recovery.Lock()
					log := &ata.Task{Taskfile: readLog(0x10, 0, 1), DataIn: [][]byte{make([]byte, 512)}}
					h.drive.Do(log)
					recovery.Unlock()
					if b := log.DataIn[0]; log.Failed() || int(b[0]) != tag || b[3] != ata.ErrorUNC {
						errs <- fmt.Errorf("tag %d: log %x, %+v after %+v", tag, b[:20], log.Answer, task.Answer)
						return
					}
					// Rewriting what was bad heals it.
					f.Command = 0x61
					data = want
				}
				if f.Command == 0x61 {
					copy(want, data)
				} else if string(data) != string(want) {
					errs <- fmt.Errorf("tag %d: read other data than was written", tag)
					return
				}
			}
		}()
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
}

// TestNoAllocations reads and writes through the queue.
func TestNoAllocations(t *testing.T) {
	h := newHost(t, 1<<20, ata.Options{})
	h.good(cmd48(0x35, 0, 8), make([]byte, 4096))
	data := [][]byte{make([]byte, 4096)}
	task := ata.Task{DataIn: data, DataOut: data, Done: func(*ata.Task) {}}
	for _, code := range []byte{0x60, 0x61} {
		task.Taskfile = queued(code, 4, 0, 8)
		if n := testing.AllocsPerRun(100, func() { h.drive.Issue(&task) }); n > 0 || task.Failed() {
			t.Errorf("%#x: %v allocations, %+v", code, n, task.Answer)
		}
	}
}

func BenchmarkQueued(b *testing.B) {
	h := newHost(b, 64<<20, ata.Options{})
	h.good(cmd48(0x35, 0, 0), make([]byte, 65536*512))
	data := [][]byte{make([]byte, 4096)}
	task := ata.Task{DataIn: data, DataOut: data}
	for _, c := range []struct {
		name string
		code byte
	}{{"READ", 0x60}, {"WRITE", 0x61}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := uint32(1); b.Loop(); i++ {
				task.Taskfile = queued(c.code, int(i%32), uint64(i*2654435761%8000)*8, 8)
				h.drive.Do(&task)
			}
		})
	}
}
