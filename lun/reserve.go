package lun

import "slices"

// Reservations: RESERVE and RELEASE of SPC-2, and what persistent ones
// (prin.go, prout.go) share with them.

var reserveOps = []op{
	{name: "RESERVE(6)", usage: "16 00 00 00 00 00", class: exclusive, run: (*Disk).reserveUnit},
	{name: "RELEASE(6)", usage: "17 00 00 00 00 00", run: (*Disk).releaseUnit},
	{name: "RESERVE(10)", usage: "56 00 0000000000 0000 00", class: exclusive, run: (*Disk).reserveUnit},
	{name: "RELEASE(10)", usage: "57 00 0000000000 0000 00", run: (*Disk).releaseUnit},
	prInOp("READ KEYS", 0x00, (*Disk).readKeys),
	prInOp("READ RESERVATION", 0x01, (*Disk).readReservation),
	prInOp("REPORT CAPABILITIES", 0x02, (*Disk).reportCapabilities),
	prInOp("READ FULL STATUS", 0x03, (*Disk).readFullStatus),
	prOutOp("REGISTER", 0x00, (*Disk).register),
	prOutOp("RESERVE", 0x01, byRegistrant((*Disk).persistentReserve)),
	prOutOp("RELEASE", 0x02, byRegistrant((*Disk).persistentRelease)),
	prOutOp("CLEAR", 0x03, byRegistrant((*Disk).clearReservations)),
	prOutOp("PREEMPT", 0x04, byRegistrant((*Disk).preempt)),
	prOutOp("PREEMPT AND ABORT", 0x05, byRegistrant((*Disk).preempt)),
	prOutOp("REGISTER AND IGNORE EXISTING KEY", 0x06, (*Disk).register),
	prOutOp("REGISTER AND MOVE", 0x07, byRegistrant((*Disk).registerAndMove)),
}

// Persistent reservation types (SPC-5 6.16.3.4).
const (
	writeExclusive                 = 0x1
	exclusiveAccess                = 0x3
	writeExclusiveRegistrantsOnly  = 0x5
	exclusiveAccessRegistrantsOnly = 0x6
	writeExclusiveAllRegistrants   = 0x7
	exclusiveAccessAllRegistrants  = 0x8
)

// maxRegistrations bounds what initiators can make a disk remember.
const maxRegistrations = 1024

// reservations are those of one disk, under Disk.mu.
//
// A persistent reservation is there while kind isn't 0. Then holder is the
// registration that holds it, one of list, or nil for the types that all
// registrants hold; of those list has at least one.
type reservations struct {
	legacy *nexus // who has done RESERVE

	list       []*registration
	generation uint32 // PRGENERATION
	kind       byte
	holder     *registration
	persists   bool // APTPL: they outlive the loss of power
}

type registration struct {
	who      identity
	allPorts bool // ALL_TG_PT: at whichever target port
	key      uint64
}

// find returns the registration of who, or nil.
func (r *reservations) find(who identity) *registration {
	for _, g := range r.list {
		if g.who.initiator == who.initiator && (g.allPorts || g.who.port == who.port) {
			return g
		}
	}
	return nil
}

// hasPortOf tells whether an initiator port is registered at any target port.
func (r *reservations) hasPortOf(initiator string) bool {
	return slices.ContainsFunc(r.list, func(g *registration) bool { return g.who.initiator == initiator })
}

// add adds a registration. One for all target ports takes the place of those that its
// initiator port has at some, and holds what they held.
func (r *reservations) add(g *registration) {
	if g.allPorts {
		r.list = slices.DeleteFunc(r.list, func(x *registration) bool {
			same := x.who.initiator == g.who.initiator
			if same && x == r.holder {
				r.holder = g
			}
			return same
		})
	}
	r.list = append(r.list, g)
}

func allRegistrants(kind byte) bool {
	return kind == writeExclusiveAllRegistrants || kind == exclusiveAccessAllRegistrants
}

// holds tells whether g is a reservation holder.
func (r *reservations) holds(g *registration) bool {
	return r.kind != 0 && g != nil && (g == r.holder || allRegistrants(r.kind))
}

// denies returns the classes of commands that a nexus may not run.
func (r *reservations) denies(n *nexus) uint32 {
	if r.legacy != nil && r.legacy != n {
		return uint32(reads | writes | exclusive)
	}
	if r.kind == 0 {
		return 0
	}
	g := r.find(n.who)
	switch {
	case r.holds(g):
		return 0
	case g != nil && (r.kind == writeExclusiveRegistrantsOnly || r.kind == exclusiveAccessRegistrantsOnly):
		return 0
	case r.kind == writeExclusive, r.kind == writeExclusiveRegistrantsOnly, r.kind == writeExclusiveAllRegistrants:
		return uint32(writes)
	}
	return uint32(reads | writes)
}

// reservationsChanged works out anew what each nexus may do. Disk.mu is held.
func (d *Disk) reservationsChanged() {
	for _, n := range *d.nexuses.Load() {
		n.deny.Store(d.reserve.denies(n))
	}
}

// reserveUnit is SPC-2 7.21. There is no compatible reservation handling: where
// there are registrations, it conflicts.
func (d *Disk) reserveUnit(n *nexus, c *Command) Sense {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.reserve.list) > 0 {
		c.Status = ReservationConflict
		return Sense{}
	}
	d.reserve.legacy = n
	d.reservationsChanged()
	return Sense{}
}

// releaseUnit is SPC-2 7.18. From another nexus than the holder it is no error
// and does nothing.
func (d *Disk) releaseUnit(n *nexus, c *Command) Sense {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.reserve.list) > 0 {
		c.Status = ReservationConflict
		return Sense{}
	}
	if d.reserve.legacy == n {
		d.reserve.legacy = nil
		d.reservationsChanged()
	}
	return Sense{}
}
