package lun

import (
	"fmt"
	"slices"
	"strings"
)

// PERSISTENT RESERVE OUT (SPC-5 6.17).

// prOut is what its service actions have in common: the parameter list, and who
// sent it.
type prOut struct {
	key, actionKey uint64
	list           []byte
	flags          byte // byte 20: SPEC_I_PT, ALL_TG_PT, APTPL

	by      *registration // see byRegistrant
	aborted []*Nexus      // those whose tasks are to be aborted afterwards
}

// prAction does the work of a service action. Disk.mu is held.
type prAction func(d *Disk, n *nexus, c *Command, p *prOut) Sense

// prOutOp makes a service action with the number that action is.
func prOutOp(name string, action byte, do prAction) op {
	return op{
		name: name, usage: fmt.Sprintf("5f %02x ff 0000 ffffffff 00", action),
		class: exclusive | standbyAccess, moves: takes(5, 4),
		run: remember(func(d *Disk, n *nexus, c *Command) Sense {
			p, s := parsePROut(c)
			if s.Key != NoSense {
				return s
			}
			d.mu.Lock()
			s = do(d, n, c, &p)
			d.mu.Unlock()
			for _, id := range p.aborted {
				if d.opt.AbortTasks != nil {
					d.opt.AbortTasks(id)
				}
				d.abortCopiesOf(d.nexusOf(id).who)
			}
			return s
		}),
	}
}

// byRegistrant is for service actions that conflict unless the nexus has registered
// the key that it sends.
func byRegistrant(do prAction) prAction {
	return func(d *Disk, n *nexus, c *Command, p *prOut) Sense {
		p.by = d.reserve.find(n.who)
		if d.reserve.legacy != nil || p.by == nil || p.by.key != p.key {
			return conflict(c)
		}
		return do(d, n, c, p)
	}
}

const (
	specIPT = 0x08
	allTgPt = 0x04
	aptpl   = 0x01
)

// maxPRList bounds a parameter list with TransportIDs.
const maxPRList = 64 << 10

// parsePROut reads the parameter list. All but the one of REGISTER AND MOVE are
// the same, 24 bytes unless TransportIDs follow.
func parsePROut(c *Command) (p prOut, s Sense) {
	n := be32(c.CDB[5:])
	bad := Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	if n < 24 || n > maxPRList {
		return p, bad
	}
	p.list = c.Gather(uint64(n))
	if len(p.list) < int(n) {
		return p, bad
	}
	c.OutLen = uint64(n)
	p.key, p.actionKey = be64(p.list), be64(p.list[8:])
	if c.CDB[1]&0x1f != 7 {
		p.flags = p.list[20]
		if p.flags&specIPT != 0 && c.CDB[1]&0x1f != 0 {
			return p, InvalidParameter(20, 3)
		}
		if n != 24 && p.flags&specIPT == 0 {
			return p, bad
		}
	}
	return p, Sense{}
}

// conflict ends the command with RESERVATION CONFLICT.
func conflict(c *Command) Sense {
	c.Status = ReservationConflict
	return Sense{}
}

// register is REGISTER, and REGISTER AND IGNORE EXISTING KEY.
func (d *Disk) register(n *nexus, c *Command, p *prOut) Sense {
	ignore, everyPort := c.CDB[1]&0x1f == 6, p.flags&allTgPt != 0
	if p.flags&aptpl != 0 && d.opt.Memory == nil {
		return InvalidParameter(20, 0)
	}
	r := &d.reserve
	g := r.find(n.who)
	switch {
	case r.legacy != nil:
		return conflict(c)
	case g == nil && p.key != 0 && !ignore, g != nil && p.key != g.key && !ignore:
		return conflict(c)
	case g == nil && everyPort && !ignore && r.hasPortOf(n.who.initiator):
		return conflict(c) // at the other port it has a key
	case g != nil && p.flags&specIPT != 0:
		return InvalidParameter(20, 3)
	case p.actionKey == 0:
		if g != nil {
			d.unregister(g, n)
		}
	case g != nil:
		g.key = p.actionKey
	default:
		who := []identity{n.who}
		if p.flags&specIPT != 0 {
			var s Sense
			if who, s = d.specified(n, p.list, everyPort); s.Key != NoSense {
				return s
			}
		}
		if len(r.list)+len(who) > maxRegistrations {
			return Sense{Key: IllegalRequest, Code: ASCInsufficientRegistrationResources}
		}
		for _, w := range who {
			r.add(&registration{who: w, key: p.actionKey, allPorts: everyPort})
		}
	}
	r.persists = p.flags&aptpl != 0
	r.generation++
	d.reservationsChanged()
	return Sense{}
}

// specified returns whom a REGISTER with SPEC_I_PT registers: n, and those whose
// TransportIDs follow the parameter list. None of them may be registered (SPC-5
// 5.14.7). Disk.mu is held.
func (d *Disk) specified(n *nexus, list []byte, everyPort bool) ([]identity, Sense) {
	if len(list) < 28 || int64(be32(list[24:])) != int64(len(list)-28) {
		return nil, InvalidParameter(24, 7)
	}
	who := []identity{n.who}
	for at := 28; at < len(list); {
		id, size := parseTransportID(list[at:])
		if size == 0 || id[0]&0x0f != n.protocol() {
			return nil, InvalidParameter(at, 7)
		}
		ports := d.portsNamed(id, n.who.port, everyPort)
		for _, w := range ports {
			if d.reserve.find(w) != nil || everyPort && d.reserve.hasPortOf(w.initiator) {
				return nil, InvalidParameter(at, 7)
			}
			if !slices.Contains(who, w) {
				who = append(who, w)
			}
		}
		if len(ports) == 0 || len(who) > maxRegistrations {
			return nil, InvalidParameter(at, 7)
		}
		at += size
	}
	return who, Sense{}
}

// portsNamed returns the initiator ports that a TransportID names, for a target port:
// of an iSCSI node all that are known (SPC-5 7.6.4.6). Disk.mu is held.
func (d *Disk) portsNamed(id string, port uint16, everyPort bool) (who []identity) {
	if !namesNode(id) {
		return []identity{{id, port}}
	}
	for _, m := range *d.nexuses.Load() {
		w := identity{m.who.initiator, port}
		if (everyPort || m.who.port == port) && iscsiNode(w.initiator) == id && !slices.Contains(who, w) {
			who = append(who, w)
		}
	}
	slices.SortFunc(who, func(a, b identity) int { return strings.Compare(a.initiator, b.initiator) })
	return who
}

// unregister removes a registration, and the reservation that it holds. by is
// the nexus that asked for it. Disk.mu is held.
func (d *Disk) unregister(g *registration, by *nexus) {
	r := &d.reserve
	r.list = slices.DeleteFunc(r.list, func(x *registration) bool { return x == g })
	if r.kind != 0 && (r.holder == g || len(r.list) == 0) {
		d.release(by)
	}
}

// release ends the reservation, and tells the registrants that shared it
// (SPC-5 5.14.11.2.2). Disk.mu is held.
func (d *Disk) release(by *nexus) {
	shared := d.reserve.kind != writeExclusive && d.reserve.kind != exclusiveAccess
	d.reserve.kind, d.reserve.holder = 0, nil
	if shared {
		d.attendRegistrants(by, ASCReservationsReleased)
	}
}

// attendRegistrants establishes a unit attention for the nexuses that are
// registered. Disk.mu is held.
func (d *Disk) attendRegistrants(but *nexus, code uint16) {
	for _, n := range *d.nexuses.Load() {
		if n != but && d.reserve.find(n.who) != nil {
			n.attend(code)
		}
	}
}

// kindOf checks the SCOPE and TYPE of the CDB.
func kindOf(c *Command) (kind byte, s Sense) {
	switch kind = c.CDB[2] & 0x0f; {
	case c.CDB[2]>>4 != 0:
		return 0, InvalidField(2, 7)
	case kind == writeExclusive, kind == exclusiveAccess, kind >= writeExclusiveRegistrantsOnly && kind <= exclusiveAccessAllRegistrants:
		return kind, Sense{}
	}
	return 0, InvalidField(2, 3)
}

// hold makes g the holder of a new reservation. Disk.mu is held.
func (r *reservations) hold(g *registration, kind byte) {
	r.kind, r.holder = kind, g
	if allRegistrants(kind) {
		r.holder = nil
	}
}

func (d *Disk) persistentReserve(_ *nexus, c *Command, p *prOut) Sense {
	kind, s := kindOf(c)
	if s.Key != NoSense {
		return s
	}
	r := &d.reserve
	if r.kind != 0 && (!r.holds(p.by) || r.kind != kind) {
		return conflict(c)
	}
	if r.kind == 0 {
		r.hold(p.by, kind)
		d.reservationsChanged()
	}
	return Sense{}
}

func (d *Disk) persistentRelease(n *nexus, c *Command, p *prOut) Sense {
	if !d.reserve.holds(p.by) {
		return Sense{}
	}
	if c.CDB[2] != d.reserve.kind { // scope 0 and the type
		return Sense{Key: IllegalRequest, Code: ASCInvalidReleaseOfReservation}
	}
	d.release(n)
	d.reservationsChanged()
	return Sense{}
}

func (d *Disk) clearReservations(n *nexus, _ *Command, _ *prOut) Sense {
	d.attendRegistrants(n, ASCReservationsPreempted)
	r := &d.reserve
	r.list, r.kind, r.holder = nil, 0, nil
	r.generation++
	d.reservationsChanged()
	return Sense{}
}

// preempt is PREEMPT, and PREEMPT AND ABORT, which has the tasks of those it
// removes aborted too (SPC-5 5.14.11.2.4).
func (d *Disk) preempt(n *nexus, c *Command, p *prOut) Sense {
	g := p.by
	r := &d.reserve
	takes := false
	switch {
	case r.kind != 0 && allRegistrants(r.kind):
		takes = p.actionKey == 0
	case p.actionKey == 0:
		return InvalidParameter(8, 7)
	case r.kind != 0:
		takes = r.holder.key == p.actionKey
	}
	kind, s := kindOf(c)
	if takes && s.Key != NoSense {
		return s
	}
	goes := func(x *registration) bool {
		if takes {
			return x != g && (x.key == p.actionKey || p.actionKey == 0)
		}
		return x.key == p.actionKey
	}
	if !takes && !slices.ContainsFunc(r.list, goes) {
		return conflict(c)
	}
	for _, m := range *d.nexuses.Load() {
		if x := r.find(m.who); x != nil && x != g && goes(x) {
			m.attend(ASCRegistrationsPreempted)
			if c.CDB[1]&0x1f == 5 {
				p.aborted = append(p.aborted, m.id)
			}
		}
	}
	r.list = slices.DeleteFunc(r.list, goes)
	switch {
	case takes:
		if r.kind != kind {
			d.attendRegistrants(n, ASCReservationsReleased)
		}
		r.hold(g, kind)
	case r.kind != 0 && len(r.list) == 0:
		d.release(n) // all held it, and none is left
	}
	r.generation++
	d.reservationsChanged()
	return Sense{}
}

// registerAndMove hands the reservation over (SPC-5 5.14.8). It takes no notice of
// SCOPE and TYPE.
func (d *Disk) registerAndMove(n *nexus, c *Command, p *prOut) Sense {
	r, g := &d.reserve, p.by
	switch {
	case r.kind == 0:
		return InvalidField(1, 4)
	case !r.holds(g) || allRegistrants(r.kind):
		return conflict(c)
	}
	to, s := d.destination(n, p.list)
	switch {
	case s.Key != NoSense:
		return s
	case p.list[17]&aptpl != 0 && d.opt.Memory == nil:
		return InvalidParameter(17, 0)
	case p.actionKey == 0:
		return InvalidParameter(8, 7)
	}
	x := r.find(to)
	if x == nil {
		if len(r.list) >= maxRegistrations {
			return Sense{Key: IllegalRequest, Code: ASCInsufficientRegistrationResources}
		}
		x = &registration{who: to}
		r.list = append(r.list, x)
	}
	x.key = p.actionKey
	r.holder = x
	r.persists = p.list[17]&aptpl != 0
	if unregister := p.list[17]&2 != 0; unregister {
		r.list = slices.DeleteFunc(r.list, func(y *registration) bool { return y == g })
	}
	r.generation++
	d.reservationsChanged()
	return Sense{}
}

// destination is the nexus that REGISTER AND MOVE names: one initiator port, another
// than that of n, and a target port that there is. Disk.mu is held.
func (d *Disk) destination(n *nexus, list []byte) (to identity, s Sense) {
	if int64(be32(list[20:])) != int64(len(list)-24) {
		return to, InvalidParameter(20, 7)
	}
	id, size := parseTransportID(list[24:])
	switch {
	case size == 0 || size != len(list)-24, id[0]&0x0f != n.protocol(), namesNode(id), id == n.who.initiator:
		return to, InvalidParameter(24, 7)
	case !d.hasPort(be16(list[18:])):
		return to, InvalidParameter(18, 7)
	}
	return identity{id, be16(list[18:])}, Sense{}
}

// hasPort tells whether there is a target port of that relative identifier. Disk.mu
// is held.
func (d *Disk) hasPort(port uint16) bool {
	if port == 0 { // they count from 1
		return false
	}
	if slices.Contains(d.opt.Ports, port) || d.groupOf(port) != nil {
		return true
	}
	for _, m := range *d.nexuses.Load() {
		if m.who.port == port {
			return true
		}
	}
	return false
}
