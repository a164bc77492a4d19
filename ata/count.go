package ata

import (
	"sync/atomic"
	"time"
)

// counters are what logs and SMART tell of. They outlive a power cycle.
type counters struct {
	powerCycles, starts, stops atomic.Uint64
	reads, blocksRead          atomic.Uint64
	writes, blocksWritten      atomic.Uint64
	uncorrectable              atomic.Uint64
	resets                     [HardReset + 1]atomic.Uint64
	interrupting               atomic.Uint64 // resets that took tasks down
	phyResets                  atomic.Uint64 // COMRESETs since the phy event counters were reset

	// Under Drive.mu.
	errors  errorRing
	history [historyLength]record // the last commands
	came    uint64                // how many there were
}

// lasting are those that outlive a restart. New ones come last.
func (c *counters) lasting() []*atomic.Uint64 {
	return []*atomic.Uint64{
		&c.powerCycles, &c.starts, &c.stops, &c.reads, &c.blocksRead, &c.writes, &c.blocksWritten,
		&c.uncorrectable, &c.resets[SoftReset], &c.resets[HardReset], &c.interrupting,
	}
}

// historyLength is how many commands the error logs show with each error.
const historyLength = 5

// record is a command and when it came, from power on.
type record struct {
	task Taskfile
	at   time.Duration
}

// errorEntry is an error with the commands before it, the last of which failed.
type errorEntry struct {
	registers Registers
	hours     uint16
	history   [historyLength]record // the oldest first
}

// errorsKept is how many errors the logs have: all of a summary page.
const errorsKept = 5

// errorRing is the last errors.
type errorRing struct {
	list  [errorsKept]errorEntry
	count uint64 // ever
}

// last returns the i-th of them from the last one on, 0 being that.
func (r *errorRing) last(i int) *errorEntry { return &r.list[(int(r.count)-1-i)%errorsKept] }

// kept is how many there are.
func (r *errorRing) kept() int { return int(min(r.count, errorsKept)) }

// remember notes a command that came. Drive.mu is held.
func (d *Drive) remember(t *Taskfile) {
	c := &d.count
	c.history[c.came%historyLength] = record{*t, time.Since(d.power.on)}
	c.came++
}

// noteError notes an error that the logs are to have. Drive.mu is held.
func (d *Drive) noteError(t *Task) {
	c := &d.count
	e := errorEntry{registers: t.Answer, hours: d.hours()}
	for i := range e.history {
		if n := c.came + uint64(i); n >= historyLength {
			e.history[i] = c.history[n%historyLength]
		}
	}
	c.errors.list[c.errors.count%errorsKept] = e
	c.errors.count++
}

// failed counts a task that failed. Drive.mu is held.
func (d *Drive) failed(t *Task, f failure) {
	if f.unlogged || f.err == ErrorABRT && !f.fault {
		return // ABRT is what hosts get that try something out
	}
	if f.err&ErrorUNC != 0 {
		d.count.uncorrectable.Add(1)
	}
	d.noteError(t)
}

// hours is the time that the drive has had power.
func (d *Drive) hours() uint16 { return uint16(time.Since(d.made) / time.Hour) }
