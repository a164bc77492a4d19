package lun

import (
	"sync/atomic"
	"time"
)

// usage is how long a disk was idle. The zero value is one without commands since
// the moment 0.
type usage struct {
	// state is the number of commands under way in its low usageBits, and above
	// them, while there are none, when the last one ended, in units of usageUnit:
	// in one word, so that no moment is counted for idle and for busy.
	state atomic.Uint64
	idle  atomic.Int64 // ns
}

const (
	usageBits = 20 // more commands than can be under way
	usageUnit = 16 * time.Microsecond
)

// begin and end are around a command, at times of the same clock.
func (u *usage) begin(now time.Duration) {
	if s := u.state.Add(1); s&(1<<usageBits-1) == 1 {
		// Both are cut to the unit, so that what is lost at one end is won at the other.
		since := time.Duration(s >> usageBits)
		u.idle.Add(int64(max(0, now/usageUnit-since) * usageUnit))
	}
}

func (u *usage) end(now time.Duration) {
	for {
		old := u.state.Load()
		left := old - 1
		if left&(1<<usageBits-1) == 0 {
			left = uint64(now/usageUnit) << usageBits
		}
		if u.state.CompareAndSwap(old, left) {
			return
		}
	}
}

// spent adds a command that took so long to the time of what it was.
func (c *counters) spent(k *Command, took time.Duration) {
	list := [2]*traffic{&c.all}
	if g := group(k.CDB); g != 0 && g < groupCount {
		list[1] = &c.groups[g]
	}
	for _, t := range list {
		switch {
		case t == nil:
		case k.counted == countedRead:
			t.readTime.Add(int64(took))
		default:
			t.writeTime.Add(int64(took))
		}
	}
}

// What the statistics have counted a command for.
type counted uint8

const (
	countedNot counted = iota
	countedRead
	countedWrite
)
