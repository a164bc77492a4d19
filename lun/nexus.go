package lun

import (
	"maps"
	"slices"
	"sync/atomic"
)

// nexus is what a disk keeps for each I_T nexus that it has heard from.
type nexus struct {
	id  *Nexus
	who identity

	pending atomic.Bool   // attentions isn't empty
	deny    atomic.Uint32 // the classes that reservations keep it from
	access  atomic.Uint32 // its AccessState

	// Under Disk.mu.
	attentions []attention // next first
	prevents   bool        // it has prevented medium removal
}

// attention is a unit attention condition: an additional sense code, and what is
// in the INFORMATION field unless that is 0.
type attention struct {
	code uint16
	info uint64
}

// identity is how reservations know a nexus, and know it again after a
// reconnect.
type identity struct {
	initiator string // its initiatorID
	port      uint16 // relative target port identifier
}

var anonymous = new(Nexus)

// nexusOf returns what is kept for id, which is new to the disk at first and
// learns that the unit was powered on.
func (d *Disk) nexusOf(id *Nexus) *nexus {
	if n := (*d.nexuses.Load())[id]; n != nil {
		return n
	}
	if id == nil {
		id = anonymous
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	old := *d.nexuses.Load()
	if n := old[id]; n != nil {
		return n
	}
	n := &nexus{id: id, who: identity{initiatorID(id.Initiator), id.TargetPort}}
	if len(id.Initiator) == 0 {
		n.who.initiator = id.Name
	}
	n.attend(ASCPowerOnOrReset)
	n.deny.Store(d.reserve.denies(n))
	n.access.Store(uint32(d.accessOf(n)))
	all := maps.Clone(old)
	all[id] = n
	d.nexuses.Store(&all)
	return n
}

// denied tells whether reservations keep the nexus from commands of the class.
func (n *nexus) denied(c class) bool { return n.deny.Load()&uint32(c) != 0 }

// attend establishes a unit attention condition. Disk.mu is held.
func (n *nexus) attend(code uint16) { n.attendTo(attention{code: code}) }

func (n *nexus) attendTo(a attention) {
	if a.isReset() {
		// A reset leaves nothing to tell of what was before, but for what goes first.
		n.attentions = slices.DeleteFunc(n.attentions, func(b attention) bool { return b.precedence() > a.precedence() })
		if len(n.attentions) > 0 && n.attentions[0].isReset() {
			return // a greater one
		}
	}
	if slices.Contains(n.attentions, a) {
		return
	}
	at := len(n.attentions)
	for at > 0 && n.attentions[at-1].precedence() > a.precedence() {
		at--
	}
	n.attentions = slices.Insert(n.attentions, at, a)
	n.pending.Store(true)
}

func (a attention) isReset() bool { return a.code == ASCPowerOnOrReset || a.code == ASCBusDeviceReset }

// precedence is the place of a unit attention condition among those that are
// pending, the first one first (SAM-5 5.14.2).
func (a attention) precedence() int {
	return slices.Index([]uint16{ASCPowerOnOrReset, ASCMicrocodeChanged, ASCBusDeviceReset, ASCNexusLoss, a.code}, a.code)
}

// takeAttention returns the next unit attention of the nexus and clears it.
func (d *Disk) takeAttention(n *nexus) Sense {
	d.mu.Lock()
	if len(n.attentions) == 0 {
		d.mu.Unlock()
		return Sense{}
	}
	a := n.attentions[0]
	n.attentions = slices.Delete(n.attentions, 0, 1)
	n.pending.Store(len(n.attentions) > 0)
	d.mu.Unlock()
	if a.code == ASCReportedLUNsDataHasChanged && n.id.LUNsReported != nil {
		n.id.LUNsReported()
	}
	return a.sense()
}

// lunsReported ends REPORTED LUNS DATA HAS CHANGED for a nexus, nil for one that the
// disk hasn't heard from.
func (d *Disk) lunsReported(n *nexus) {
	if n == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n.attentions = slices.DeleteFunc(n.attentions, func(a attention) bool { return a.code == ASCReportedLUNsDataHasChanged })
	n.pending.Store(len(n.attentions) > 0)
}

// Attention implements [TaskController].
func (d *Disk) Attention(id *Nexus) (count int, first Sense) {
	n := d.nexusOf(id)
	if d.pool != nil {
		d.watchPool()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(n.attentions) > 0 {
		first = n.attentions[0].sense()
	}
	return len(n.attentions), first
}

func (a attention) sense() Sense {
	return Sense{Key: UnitAttention, Code: a.code, Info: a.info, HasInfo: a.info != 0}
}

// attendOthers establishes a unit attention for every nexus but one, which may
// be nil. Disk.mu is held.
func (d *Disk) attendOthers(but *nexus, code uint16) {
	for _, n := range *d.nexuses.Load() {
		if n != but {
			n.attend(code)
		}
	}
}

// Notify implements [Unit].
func (d *Disk) Notify(id *Nexus, e Event) {
	switch e {
	case NexusLoss:
		d.forget(id)
		return
	case LUNsReported:
		d.lunsReported((*d.nexuses.Load())[id])
		return
	}
	var n *nexus
	if id != nil {
		n = d.nexusOf(id)
	}
	uncached, copies := d.notify(n, e)
	for _, op := range copies {
		<-op.done
	}
	if uncached {
		// There is nobody to tell of an error. What a store has lost it says again
		// at the next flush.
		d.flush()
	}
}

// notify does what Notify says, and tells whether the write cache was turned off,
// as the modes may say that a reset goes back to: what is in it is to be flushed.
// copies are to end before the reset does.
func (d *Disk) notify(n *nexus, e Event) (uncached bool, copies []*copyOperation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	cached := d.writeBack.Load()
	switch e {
	case LogicalUnitReset:
		copies = d.reset(ASCBusDeviceReset)
	case HardReset:
		copies = d.reset(ASCPowerOnOrReset)
		d.or.reset()
	case NexusReset:
		d.dropReserve(n)
		n.prevents = false
		n.attend(ASCNexusLoss)
	case CommandsCleared:
		d.attendOthers(n, ASCCommandsCleared)
	case CommandsLost:
		n.attend(ASCCommandsCleared)
	case LUNsChanged:
		if n != nil {
			n.attend(ASCReportedLUNsDataHasChanged)
		} else {
			d.attendOthers(nil, ASCReportedLUNsDataHasChanged)
		}
	}
	return cached && !d.writeBack.Load(), copies
}

// reset is a logical unit reset (SAM-5 6.3.3). It returns copies that were told
// to end. Disk.mu is held.
func (d *Disk) reset(code uint16) []*copyOperation {
	for _, p := range d.pages {
		copy(p.current, p.saved)
	}
	d.power.enter(activeCondition, false)
	d.applyModes()
	d.pending = nil
	d.reserve.legacy = nil
	for _, n := range *d.nexuses.Load() {
		n.prevents = false
		n.attend(code)
	}
	d.reservationsChanged()
	return d.abortCopies()
}

// forget drops a nexus that is gone: its unit attentions, its prevention of
// medium removal and its RESERVE. What is persistent stays.
func (d *Disk) forget(id *Nexus) {
	if id == nil {
		id = anonymous
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	all := maps.Clone(*d.nexuses.Load())
	n := all[id]
	if n == nil {
		return
	}
	delete(all, id)
	d.copies = slices.DeleteFunc(d.copies, func(op *copyOperation) bool { return op.who == n.who && op.status != 0 })
	d.nexuses.Store(&all)
	d.dropReserve(n)
}

// dropReserve ends the RESERVE of a nexus. Disk.mu is held.
func (d *Disk) dropReserve(n *nexus) {
	if d.reserve.legacy == n {
		d.reserve.legacy = nil
		d.reservationsChanged()
	}
}
