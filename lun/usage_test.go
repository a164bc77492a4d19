package lun_test

import (
	"encoding/binary"
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/lun/store"
)

// called is a store that calls a function before each read and write.
type called struct {
	store.Store
	before func()
}

func (s *called) ReadAt(b []byte, off int64) (int, error) {
	s.before()
	return s.Store.ReadAt(b, off)
}

func (s *called) WriteAt(b []byte, off int64) (int, error) {
	s.before()
	return s.Store.WriteAt(b, off)
}

// TestUsageTimes compares the times in the statistics page with the least and the
// most that they can be.
func TestUsageTimes(t *testing.T) {
	const interval = 50 * time.Millisecond
	s := &called{Store: mustMem(t, 1<<20), before: func() {}}
	start := time.Now()
	h := hostOf(t, s, lun.DiskOptions{})
	times := func() (read, write, idle time.Duration) {
		t.Helper()
		p := h.logPage(0x19, 0, 1)
		unit := func(b []byte) time.Duration { return time.Duration(binary.BigEndian.Uint64(b)) * interval }
		return unit(p[1][32:]), unit(p[1][40:]), unit(p[2])
	}
	s.before = func() { time.Sleep(3 * interval) }
	h.run(transfer(0x28, 0, 3, 0), nil, 1536).good()
	s.before = func() { time.Sleep(5 * interval) }
	h.run(transfer(0x2a, 0, 8, 0), make([]byte, 4096), 0).good()
	s.before = func() {}
	time.Sleep(4 * interval)
	read, write, idle := times()
	all := time.Since(start)
	if read < 3*interval || write < 5*interval || idle < 4*interval {
		t.Errorf("%v of reading, %v of writing, %v idle: want 150 ms, 250 ms, 200 ms at least", read, write, idle)
	}
	if sum := read + write + idle; sum > all {
		t.Errorf("%v of reading, writing and idle in %v", sum, all)
	}
	h.do("4c 02 c0 00 000000 0000 00", nil, 0).good()
	if read, write, _ := times(); read+write != 0 {
		t.Errorf("%v of reading and %v of writing after a reset", read, write)
	}
	// A command that comes and ends beside another makes no idle time.
	_, _, before := times()
	began := time.Now()
	o := h.other("b")
	o.do("00 00 00 00 00 00", nil, 0)
	s.before = func() {
		h.do("00 00 00 00 00 00", nil, 0).good()
		time.Sleep(6 * interval)
	}
	o.run(transfer(0x28, 0, 3, 0), nil, 1536).good()
	_, _, after := times()
	if most := time.Since(began) - 5*interval; after-before > most {
		t.Errorf("%v idle in that time, want %v at most", after-before, most)
	}
}
