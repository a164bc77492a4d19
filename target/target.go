// Package target is the SCSI target of SAM-5: it maps logical unit numbers to
// units, answers for those that aren't there, keeps the task sets, and does
// task management across the nexuses of all transports.
//
// A transport makes a [Nexus] for each initiator that comes, and takes a [Task]
// through it: [Nexus.Lookup] the unit, [Nexus.Enter] the task set, collect the
// data, [Task.Execute], [Task.Leave], answer.
package target

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"lunlab/lun"
)

// Target is a SCSI target device: a set of logical units and the nexuses that
// reach them. It is safe for concurrent use.
type Target struct {
	// units is replaced as a whole, so that commands look it up without a lock.
	units  atomic.Pointer[map[uint16]*LogicalUnit]
	absent *LogicalUnit
	wlun   *LogicalUnit

	mu      sync.Mutex // guards changes to units, and nexuses
	nexuses map[*Nexus]struct{}
}

// New makes a target without logical units.
func New() *Target {
	t := &Target{nexuses: map[*Nexus]struct{}{}}
	t.units.Store(&map[uint16]*LogicalUnit{})
	t.absent = t.newUnit(absentUnit, kindAbsent)
	t.wlun = t.newUnit(wellKnownUnit, kindWellKnown)
	return t
}

func (t *Target) newUnit(u lun.Unit, kind unitKind) *LogicalUnit {
	lu := &LogicalUnit{unit: u, kind: kind, control: new(lun.TaskControl)}
	lu.set.lu, lu.set.target = lu, t
	if c := lun.TaskControllerOf(u); c != nil {
		lu.controller, lu.control = c, c.TaskControl()
		lu.control.Offer(functions)
	}
	return lu
}

// functions are the task management functions that a target has.
const functions = lun.AbortTaskFunction | lun.AbortTaskSetFunction | lun.ClearACAFunction | lun.ClearTaskSetFunction |
	lun.LogicalUnitResetFunction | lun.QueryTaskFunction | lun.QueryAsyncEventFunction | lun.QueryTaskSetFunction | lun.NexusResetFunction

// Limits bound what one logical unit takes on at once.
type Limits struct {
	// CmdPerLUN is the most commands in the task set, of all nexuses together;
	// one more gets TASK SET FULL. 0 means no limit.
	CmdPerLUN int
}

func (l Limits) check() error {
	if l.CmdPerLUN < 0 {
		return fmt.Errorf("target: cmd_per_lun %d is negative", l.CmdPerLUN)
	}
	return nil
}

// LogicalUnit is a unit at its place in a target, with its task set's counts.
type LogicalUnit struct {
	unit   lun.Unit
	number uint16
	kind   unitKind
	limit  atomic.Int64

	// removed says that no task is to enter any more. It is set before the tasks of
	// all nexuses are aborted, and looked at with the lock of the task's.
	removed atomic.Bool

	control    *lun.TaskControl
	controller lun.TaskController // nil for a unit that leaves its task set to us
	set        taskSet

	inFlight     atomic.Int64
	mostInFlight atomic.Int64
	full         atomic.Uint64
	counters     counters
}

type unitKind uint8

const (
	kindUnit unitKind = iota
	kindAbsent
	kindWellKnown
)

// ErrLUNInUse says that there is a unit at that number.
var ErrLUNInUse = errors.New("target: logical unit number in use")

// Add puts u at number n, 0 to [MaxNumber]. The other units tell their
// initiators that the inventory has changed.
func (t *Target) Add(n uint16, u lun.Unit, l Limits) (*LogicalUnit, error) {
	if n > MaxNumber {
		return nil, fmt.Errorf("target: logical unit number %d is above %d", n, MaxNumber)
	}
	if err := l.check(); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := *t.units.Load()
	if _, ok := old[n]; ok {
		return nil, fmt.Errorf("%w: %d", ErrLUNInUse, n)
	}
	lu := t.newUnit(u, kindUnit)
	lu.number = n
	lu.limit.Store(int64(l.CmdPerLUN))
	m := maps.Clone(old)
	m[n] = lu
	t.units.Store(&m)
	t.inventoryChanged(old)
	return lu, nil
}

// Remove takes the unit at number n away. Its tasks are aborted, and have ended
// when Remove returns; none can enter any more, so that the unit may be closed
// then. It tells whether there was one.
func (t *Target) Remove(n uint16) bool {
	t.mu.Lock()
	old := *t.units.Load()
	lu, ok := old[n]
	if !ok {
		t.mu.Unlock()
		return false
	}
	m := maps.Clone(old)
	delete(m, n)
	t.units.Store(&m)
	t.inventoryChanged(m)
	t.mu.Unlock()
	lu.removed.Store(true)
	a := t.abort(nil, t.list(), of(lu))
	a.Wait()
	return true
}

func (t *Target) inventoryChanged(units map[uint16]*LogicalUnit) {
	if len(t.nexuses) == 0 {
		return
	}
	for _, lu := range units {
		lu.unit.Notify(nil, lun.LUNsChanged)
	}
}

// Units lists the logical units by number.
func (t *Target) Units() []*LogicalUnit {
	return slices.SortedFunc(maps.Values(*t.units.Load()), func(a, b *LogicalUnit) int { return int(a.number) - int(b.number) })
}

// Unit is what the logical unit's commands go to.
func (u *LogicalUnit) Unit() lun.Unit { return u.unit }

// Number is the logical unit number.
func (u *LogicalUnit) Number() uint16 { return u.number }

// Present tells whether there is a unit, or only something that says there is none.
func (u *LogicalUnit) Present() bool { return u.kind != kindAbsent }

// CmdPerLUN is the limit that holds; 0 means none.
func (u *LogicalUnit) CmdPerLUN() int { return int(u.limit.Load()) }

// SetLimits has other limits hold from now on. Commands that are in the task set
// stay there.
func (u *LogicalUnit) SetLimits(l Limits) error {
	if err := l.check(); err != nil {
		return err
	}
	u.limit.Store(int64(l.CmdPerLUN))
	return nil
}

// InFlight is the number of commands in the task set now.
func (u *LogicalUnit) InFlight() int { return int(u.inFlight.Load()) }

// MostInFlight is the largest that InFlight has been.
func (u *LogicalUnit) MostInFlight() int { return int(u.mostInFlight.Load()) }

// TaskSetFull counts the commands that were answered so.
func (u *LogicalUnit) TaskSetFull() uint64 { return u.full.Load() }

// enter counts a command in, or says that the task set is full.
func (u *LogicalUnit) enter() bool {
	n := u.inFlight.Add(1)
	if limit := u.limit.Load(); limit > 0 && n > limit {
		u.inFlight.Add(-1)
		u.full.Add(1)
		return false
	}
	for {
		most := u.mostInFlight.Load()
		if n <= most || u.mostInFlight.CompareAndSwap(most, n) {
			return true
		}
	}
}

func (u *LogicalUnit) leave() { u.inFlight.Add(-1) }
