package queue

// PerCPUBatch is percpu_counter_batch on a machine with so many CPUs online: a
// CPU's part of a per-CPU counter is folded into the counter when it has come to
// this.
func PerCPUBatch(cpus int) int { return max(32, 2*cpus) }

// PerCPUError is the most by which percpu_counter_read of a counter that is only
// counted up can be behind: what the CPUs have and have not folded. A sum
// (percpu_counter_sum, which sysfs shows of iorequest_cnt and iodone_cnt where they
// are per-CPU counters) is exact at rest; while it is taken, each CPU's part is of
// the moment when it was read, so of a counter that is only counted up the sum is
// between what it was before and after.
func PerCPUError(cpus int) int { return cpus * (PerCPUBatch(cpus) - 1) }

// PerCPUCounter is a struct percpu_counter. It keeps: no CPU's part is as large as
// the batch. It is not safe for concurrent use: others come in between by Sum's
// callback.
type PerCPUCounter struct {
	batch   int64
	count   int64
	parts   []int64
	locked  bool
	waiting []func() // for the lock
}

// NewPerCPUCounter makes a counter for so many CPUs.
func NewPerCPUCounter(cpus int) *PerCPUCounter {
	return &PerCPUCounter{batch: int64(PerCPUBatch(cpus)), parts: make([]int64, cpus)}
}

// Add is percpu_counter_add on a CPU: it reports whether the part was folded,
// which needs the counter's lock. While Sum has that, the CPU waits with it.
func (c *PerCPUCounter) Add(cpu int, amount int64) bool {
	n := c.parts[cpu] + amount
	if n < c.batch && -n < c.batch {
		c.parts[cpu] = n
		return false
	}
	if c.locked {
		c.waiting = append(c.waiting, func() { c.Add(cpu, amount) })
		return false
	}
	c.count += n
	c.parts[cpu] = 0
	return true
}

// Read is percpu_counter_read: without what the CPUs have not folded.
func (c *PerCPUCounter) Read() int64 { return c.count }

// Sum is percpu_counter_sum. between is called after each CPU's part, as others
// can add meanwhile; it can be nil.
func (c *PerCPUCounter) Sum(between func()) int64 {
	c.locked = true
	sum := c.count
	for _, n := range c.parts {
		sum += n
		if between != nil {
			between()
		}
	}
	c.locked = false
	for _, add := range c.waiting {
		add()
	}
	c.waiting = nil
	return sum
}

// Counted is what a target has counted of a device's commands. Two looks at it
// bound what the kernel's own counts read between them: see [RequestRange],
// [DoneRange] and [BusyRange]. At rest, where both looks are the same and nothing is
// on its way, iorequest_cnt and iodone_cnt are the target's own. It is the same for
// per-CPU counters, which sysfs sums: see [PerCPUError].
type Counted struct {
	Received, Answered int64
	// Dropped is of those that it was told to abort before it had answered.
	Dropped int64
}

// Range is what a count can be, both ends included.
type Range struct{ Min, Max int64 }

// Has says whether n is in the range.
func (r Range) Has(n int64) bool { return r.Min <= n && n <= r.Max }

// RequestRange is of iorequest_cnt, of a device with so many commands in flight at
// most ([Device.MaxInFlight]). A command is counted before its driver has it, and is
// taken back if the driver refuses it.
func RequestRange(before, after Counted, inFlight int) Range {
	return Range{before.Received, after.Received + int64(inFlight)}
}

// DoneRange is of iodone_cnt. A command counts when its answer has come, or, without
// one, when it has timed out.
func DoneRange(before, after Counted, inFlight int, timedOut int64) Range {
	return Range{before.Answered - int64(inFlight), after.Answered + timedOut}
}

// BusyRange is of device_busy, of which neither way to count it is a look at one
// moment: the weight of a map is added up word by word, and a walk goes from tag to
// tag. What the target has held from one look to the other is in it.
func BusyRange(before, after Counted, inFlight int) Range {
	return Range{max(before.Received-after.Answered-after.Dropped, 0), int64(inFlight)}
}
