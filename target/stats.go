package target

import (
	"math/bits"
	"sync/atomic"
	"time"

	"lunlab/lun"
)

// Stats is what a logical unit has done since it was added.
type Stats struct {
	// Opcodes and Statuses count the commands that were answered, by operation
	// code and by status.
	Opcodes  map[uint8]uint64
	Statuses map[lun.Status]uint64

	// Aborted counts those that task management ended; they aren't in the others.
	Aborted uint64

	// Read and Written are bytes of data-in and data-out of the commands.
	Read, Written uint64

	// Latency holds the times from a command's entering its task set to its
	// leaving it: for an iSCSI write, the transfer of its data included.
	Latency Latency
}

// Latency is a distribution of times, in buckets that are at most an eighth of
// their time wide.
type Latency struct {
	Count   uint64
	buckets [latencyBuckets]uint64
}

const (
	subBuckets = 8

	// latencyBuckets reach to 2^40 ns, 18 minutes.
	latencyBuckets = (40 - 2) * subBuckets
)

// bucketOf is the bucket of a time: the position of its highest bit, and the
// three bits below that.
func bucketOf(ns uint64) int {
	if ns < subBuckets {
		return int(ns)
	}
	top := bits.Len64(ns) - 1
	return min((top-2)*subBuckets+int(ns>>(top-3))&(subBuckets-1), latencyBuckets-1)
}

// bucketEnd is the first time beyond a bucket, in ns.
func bucketEnd(i int) uint64 {
	if i < subBuckets {
		return uint64(i) + 1
	}
	top, sub := i/subBuckets+2, uint64(i%subBuckets)
	return (subBuckets + sub + 1) << (top - 3)
}

// Quantile is a time that the fraction q of the commands, 0 to 1, didn't pass;
// too high by an eighth at the most. It is 0 if there were none.
func (l *Latency) Quantile(q float64) time.Duration {
	if l.Count == 0 {
		return 0
	}
	left := min(uint64(q*float64(l.Count)), l.Count-1)
	for i, n := range l.buckets {
		if n > left || i == len(l.buckets)-1 {
			return time.Duration(bucketEnd(i))
		}
		left -= n
	}
	return 0
}

// counters are a unit's Stats while it works.
type counters struct {
	opcodes       [256]atomic.Uint64
	statuses      [256]atomic.Uint64
	aborted       atomic.Uint64
	read, written atomic.Uint64
	latency       [latencyBuckets]atomic.Uint64
}

// clockStart is what times are taken from, as the time since it is cheaper to
// get than the time of day.
var clockStart = time.Now()

func now() int64 { return int64(time.Since(clockStart)) }

func (c *counters) count(t *Task) {
	if len(t.CDB) > 0 {
		c.opcodes[t.CDB[0]].Add(1)
	}
	c.statuses[t.Status].Add(1)
	if t.Status == lun.Good {
		c.read.Add(t.InLen)
		c.written.Add(t.OutLen)
	}
	c.latency[bucketOf(uint64(max(now()-t.entered, 0)))].Add(1)
}

// Stats is a snapshot. Counts of commands that end meanwhile may be in one part
// of it and not yet in another.
func (u *LogicalUnit) Stats() Stats {
	c := &u.counters
	s := Stats{
		Opcodes: map[uint8]uint64{}, Statuses: map[lun.Status]uint64{},
		Aborted: c.aborted.Load(), Read: c.read.Load(), Written: c.written.Load(),
	}
	for i := range c.opcodes {
		if n := c.opcodes[i].Load(); n > 0 {
			s.Opcodes[uint8(i)] = n
		}
	}
	for i := range c.statuses {
		if n := c.statuses[i].Load(); n > 0 {
			s.Statuses[lun.Status(i)] = n
		}
	}
	for i := range c.latency {
		n := c.latency[i].Load()
		s.Latency.buckets[i] = n
		s.Latency.Count += n
	}
	return s
}
