package target

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"lunlab/lun"
)

// Meter is a unit in front of another that counts the commands in flight at
// the target, and holds their completions back when it is told to. What is
// held is outstanding for sure, so that the most in flight is what the
// initiator lets be in flight and not what its speed happened to give.
type Meter struct {
	lun.Unit

	inFlight atomic.Int64
	most     atomic.Int64
	done     atomic.Uint64

	clock lun.Clock
	mu    sync.Mutex
	gate  atomic.Pointer[chan struct{}] // what commands wait for while held
}

// NewMeter puts a meter in front of a unit.
func NewMeter(u lun.Unit) *Meter { return NewMeterAt(u, lun.RealTime) }

// NewMeterAt is [NewMeter] for a unit whose commands are held up in another time.
func NewMeterAt(u lun.Unit, c lun.Clock) *Meter { return &Meter{Unit: u, clock: c} }

// Unwrap returns the unit behind the meter.
func (m *Meter) Unwrap() lun.Unit { return m.Unit }

// Blocking is always true: a command may be held at any time.
func (m *Meter) Blocking() bool { return true }

// Execute runs the command behind the meter and, while the meter holds, does
// not return before [Meter.Release] or the command's cancellation.
func (m *Meter) Execute(c *lun.Command) {
	n := m.inFlight.Add(1)
	for most := m.most.Load(); n > most && !m.most.CompareAndSwap(most, n); most = m.most.Load() {
	}
	if gate := m.gate.Load(); gate != nil {
		m.clock.Wait(-1, *gate, c.Cancel)
	}
	m.Unit.Execute(c)
	m.inFlight.Add(-1)
	m.done.Add(1)
}

// InFlight returns the commands that are being executed now.
func (m *Meter) InFlight() int { return int(m.inFlight.Load()) }

// Done returns the number of commands that have ended.
func (m *Meter) Done() uint64 { return m.done.Load() }

// Most returns the most commands in flight since the last [Meter.Mark].
func (m *Meter) Most() int { return int(m.most.Load()) }

// Mark starts a new watch for [Meter.Most], at what is in flight now.
func (m *Meter) Mark() { m.most.Store(m.inFlight.Load()) }

// Hold keeps the commands that come from now on from ending.
func (m *Meter) Hold() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gate.Load() == nil {
		gate := make(chan struct{})
		m.gate.Store(&gate)
	}
}

// Holds says whether commands are kept from ending now.
func (m *Meter) Holds() bool { return m.gate.Load() != nil }

// Release lets all go on that were held.
func (m *Meter) Release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if gate := m.gate.Swap(nil); gate != nil {
		close(*gate)
	}
}

// Settle waits until a count has stood still for the time quiet, or, while it is
// below want, for the longer patience: a slow initiator is not to be taken for
// one that is held to less. It returns the count.
func Settle(ctx context.Context, count func() int, want int, quiet, patience time.Duration) (int, error) {
	last, since := count(), time.Now()
	tick := time.NewTicker(max(quiet/20, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return last, context.Cause(ctx)
		case now := <-tick.C:
			if n := count(); n != last {
				last, since = n, now
				continue
			}
			still := now.Sub(since)
			if still >= patience || last >= want && still >= quiet {
				return last, nil
			}
		}
	}
}
