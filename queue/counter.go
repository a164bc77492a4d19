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
