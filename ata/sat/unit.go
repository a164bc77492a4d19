// Package sat is the SCSI/ATA translation (SAT-5): it makes an [ata.Drive] a [lun.Unit],
// so that every transport can present it. What it knows of the drive it learns by ATA
// commands, as a SAS host bus adapter or the kernel's libata does.
package sat

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"lunlab/ata"
	"lunlab/lun"
)

// Unit is a logical unit that is an ATA drive behind a translation layer.
//
// Reads, writes and TRIM are queued by the drive (NCQ) where it can, up to its queue
// depth; other commands wait until they have the drive for themselves. When a queued
// command fails, the drive takes the others down: they are done again.
type Unit struct {
	drive *ata.Drive
	slots *slots
	table lun.CommandTable
	tasks lun.TaskControl
	works sync.Pool

	id       atomic.Pointer[identity]
	sense    bool        // the drive says in SCSI's words why a command failed
	stopped  atomic.Bool // by START STOP UNIT
	dsense   atomic.Bool // D_SENSE: sense data in the descriptor format
	sanitize atomic.Bool // there may be a SANITIZE in progress

	nexuses sync.Map   // *lun.Nexus: *nexus
	mu      sync.Mutex // for what is in a nexus

	lastThrough ata.Registers // of the last ATA PASS-THROUGH, under mu
}

// nexus is what is kept for each I_T nexus.
type nexus struct {
	pending    atomic.Bool
	attentions []uint16 // additional sense codes, the next one first
}

// New returns a unit for a drive, which has to be powered on. The unit issues tasks to it
// by itself; others may too if the drive isn't in use.
func New(d *ata.Drive) (*Unit, error) {
	u := &Unit{drive: d}
	u.works.New = func() any { return new(work) }
	u.slots = newSlots(1) // until the depth is known
	if err := u.identify(); err != nil {
		return nil, err
	}
	id := u.id.Load()
	u.slots = newSlots(max(id.depth, 1))
	if id.senseReporting {
		u.sense = !u.do(&work{Task: ata.Task{Taskfile: ata.Taskfile{Command: setFeatures, Feature: 0xc3, Count: 1}}}).failed()
	}
	for i := range ops {
		o := &ops[i]
		if o.when != nil && !o.when(id) {
			continue
		}
		c := lun.NewCDBUsage(o.name, o.usage)
		c.Of = o
		if o.seconds > 0 {
			c.Seconds = func() uint32 { return o.seconds }
		}
		u.table.Add(c)
	}
	return u, nil
}

// Drive returns the drive behind.
func (u *Unit) Drive() *ata.Drive { return u.drive }

// Close closes the drive.
func (u *Unit) Close() error { return u.drive.Close() }

// Blocking implements [lun.Unit].
func (u *Unit) Blocking() bool { return u.drive.Blocking() }

// Waits implements [lun.Waiter]: erasures and self-tests go over all of the medium.
func (u *Unit) Waits(cdb []byte) bool {
	if u.Blocking() || len(cdb) == 0 {
		return u.Blocking()
	}
	switch cdb[0] {
	case 0x48, 0x1d: // SANITIZE, SEND DIAGNOSTIC
		return true
	case 0xa1, 0x85, 0x7f:
		if c, s := u.table.Find(cdb); c == nil || s.Key != lun.NoSense {
			return false
		}
		switch parseThrough(cdb).task.Command {
		case securityEraseUnit, smart:
			return true
		}
	}
	return false
}

// TaskControl implements [lun.TaskController].
func (u *Unit) TaskControl() *lun.TaskControl { return &u.tasks }

// Attention implements [lun.TaskController].
func (u *Unit) Attention(n *lun.Nexus) (count int, first lun.Sense) {
	x := u.nexusOf(n)
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(x.attentions) > 0 {
		first = lun.Sense{Key: lun.UnitAttention, Code: x.attentions[0]}
	}
	return len(x.attentions), first
}

// nexusOf returns what is kept for n, which learns at first that the unit was powered on.
func (u *Unit) nexusOf(n *lun.Nexus) *nexus {
	if x, ok := u.nexuses.Load(n); ok {
		return x.(*nexus)
	}
	x, loaded := u.nexuses.LoadOrStore(n, &nexus{attentions: []uint16{lun.ASCPowerOnOrReset}})
	if !loaded {
		x.(*nexus).pending.Store(true)
	}
	return x.(*nexus)
}

// attend establishes a unit attention condition, for one nexus or, if that is nil, for all
// but one.
func (u *Unit) attend(only, but *nexus, code uint16) {
	u.mu.Lock()
	defer u.mu.Unlock()
	add := func(x *nexus) {
		if slices.Contains(x.attentions, code) {
			return
		}
		if code == lun.ASCPowerOnOrReset || code == lun.ASCBusDeviceReset {
			x.attentions = nil // there is nothing to tell of what was before
		}
		x.attentions = append(x.attentions, code)
		x.pending.Store(true)
	}
	if only != nil {
		add(only)
		return
	}
	u.nexuses.Range(func(_, x any) bool {
		if x != but {
			add(x.(*nexus))
		}
		return true
	})
}

// takeAttention returns the next unit attention of the nexus and clears it.
func (u *Unit) takeAttention(x *nexus, id *lun.Nexus) (code uint16, ok bool) {
	if code, ok = u.nextAttention(x); code == lun.ASCReportedLUNsDataHasChanged && id.LUNsReported != nil {
		id.LUNsReported()
	}
	return code, ok
}

func (u *Unit) nextAttention(x *nexus) (code uint16, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(x.attentions) == 0 {
		return 0, false
	}
	code = x.attentions[0]
	x.attentions = x.attentions[1:]
	x.pending.Store(len(x.attentions) > 0)
	return code, true
}

// lunsReported ends REPORTED LUNS DATA HAS CHANGED for a nexus.
func (u *Unit) lunsReported(x *nexus) {
	u.mu.Lock()
	defer u.mu.Unlock()
	x.attentions = slices.DeleteFunc(x.attentions, func(code uint16) bool { return code == lun.ASCReportedLUNsDataHasChanged })
	x.pending.Store(len(x.attentions) > 0)
}

// Notify implements [lun.Unit].
func (u *Unit) Notify(n *lun.Nexus, e lun.Event) {
	if e == lun.LUNsReported {
		if x, ok := u.nexuses.Load(n); ok {
			u.lunsReported(x.(*nexus))
		}
		return
	}
	var x *nexus
	if n != nil && e != lun.NexusLoss {
		x = u.nexusOf(n)
	}
	switch e {
	case lun.LogicalUnitReset:
		u.drive.Reset(ata.SoftReset)
		u.reset(lun.ASCBusDeviceReset)
	case lun.HardReset:
		u.drive.Reset(ata.HardReset)
		u.reset(lun.ASCPowerOnOrReset)
	case lun.NexusLoss:
		u.nexuses.Delete(n)
	case lun.NexusReset:
		u.attend(x, nil, lun.ASCNexusLoss)
	case lun.CommandsCleared:
		u.attend(nil, x, lun.ASCCommandsCleared)
	case lun.CommandsLost:
		u.attend(x, nil, lun.ASCCommandsCleared)
	case lun.LUNsChanged:
		u.attend(x, nil, lun.ASCReportedLUNsDataHasChanged)
	}
}

func (u *Unit) reset(code uint16) {
	u.dsense.Store(false)
	u.stopped.Store(false)
	u.attend(nil, nil, code)
}

// PowerCycle takes the drive's power and gives it back; see [ata.Drive.PowerCycle].
func (u *Unit) PowerCycle(lose func() error) error {
	err := u.drive.PowerCycle(lose)
	if u.sense {
		u.do(&work{Task: ata.Task{Taskfile: ata.Taskfile{Command: setFeatures, Feature: 0xc3, Count: 1}}})
	}
	u.reset(lun.ASCPowerOnOrReset)
	return errors.Join(err, u.identify())
}

// DataLength implements [lun.Unit].
func (u *Unit) DataLength(cdb []byte) (out, in uint64) {
	c, s := u.table.Find(cdb)
	if s.Key != lun.NoSense {
		return 0, 0
	}
	if o := c.Of.(*op); o.moves != nil {
		return o.moves(u, cdb)
	}
	return 0, 0
}

// Execute implements [lun.Unit].
func (u *Unit) Execute(c *lun.Command) {
	c.Status = lun.Good
	x := u.nexusOf(c.Nexus)
	found, s := u.table.Find(c.CDB)
	var o *op
	if found != nil {
		o = found.Of.(*op)
	}
	if x.pending.Load() && (o == nil || o.class&quiet == 0) {
		if code, ok := u.takeAttention(x, c.Nexus); ok {
			u.fail(c, lun.Sense{Key: lun.UnitAttention, Code: code})
			return
		}
	}
	if s.Key == lun.NoSense && o.class&medium != 0 && u.stopped.Load() {
		s = lun.Sense{Key: lun.NotReady, Code: lun.ASCNotReadyInitializingRequired}
	}
	if s.Key == lun.NoSense {
		s = o.run(u, x, c)
	}
	if s.Key != lun.NoSense {
		u.fail(c, s)
	}
}

// fail ends the command with sense data of the format that D_SENSE asks for.
func (u *Unit) fail(c *lun.Command, s lun.Sense) {
	c.InLen, c.OutLen = 0, 0
	if u.dsense.Load() || s.HasInfo && s.Info > 0xffffffff {
		c.FailDescriptor(s)
	} else {
		c.Fail(s)
	}
}

// aborted is for a command that was aborted while it waited. Nobody will see it.
var aborted = lun.Sense{Key: lun.AbortedCommand}

func be16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }
func be32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }
func be64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

func put16(b []byte, v uint16) { binary.BigEndian.PutUint16(b, v) }
func put32(b []byte, v uint32) { binary.BigEndian.PutUint32(b, v) }
func put64(b []byte, v uint64) { binary.BigEndian.PutUint64(b, v) }
