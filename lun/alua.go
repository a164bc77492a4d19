package lun

import (
	"fmt"
	"slices"
)

// Asymmetric logical unit access (SPC-5 5.17).

// AccessState is how a target port group gives access to a disk.
type AccessState uint8

const (
	ActiveOptimized    AccessState = 0x0
	ActiveNonOptimized AccessState = 0x1
	Standby            AccessState = 0x2 // no access to the medium
	Unavailable        AccessState = 0x3 // hardly any command
	Transitioning      AccessState = 0xf // on the way to another state
)

// PortGroup is a set of target ports that are always in the same state.
type PortGroup struct {
	ID        uint16
	Ports     []uint16 // relative target port identifiers
	State     AccessState
	Preferred bool // PREF
}

var aluaOps = []op{
	{name: "REPORT TARGET PORT GROUPS", usage: "a3 ea 00000000 ffffffff 00 00", class: anyAccess, moves: allocates(6, 4), run: (*Disk).reportPortGroups, when: asymmetric},
	{name: "SET TARGET PORT GROUPS", usage: "a4 0a 00000000 ffffffff 00 00", class: writes | anyAccess, moves: takes(6, 4), run: (*Disk).setPortGroups, when: explicit},
}

func asymmetric(d *Disk) bool { return len(d.opt.PortGroups) > 0 }

func explicit(d *Disk) bool { return asymmetric(d) && d.opt.ExplicitAccess }

func (s AccessState) valid() bool { return s <= Unavailable || s == Transitioning }

// checkPortGroups copies the groups, which are the disk's to change, and finds
// what is wrong with them.
func checkPortGroups(groups []PortGroup) ([]PortGroup, error) {
	groups = slices.Clone(groups)
	ids, ports := map[uint16]bool{}, map[uint16]bool{}
	for i := range groups {
		g := &groups[i]
		g.Ports = slices.Clone(g.Ports)
		switch {
		case !g.State.valid():
			return nil, fmt.Errorf("port group %d: there is no access state %#x", g.ID, uint8(g.State))
		case ids[g.ID]:
			return nil, fmt.Errorf("port group %d is there twice", g.ID)
		case len(g.Ports) > 255:
			return nil, fmt.Errorf("port group %d has more than 255 ports", g.ID)
		}
		ids[g.ID] = true
		for _, p := range g.Ports {
			if p == 0 || ports[p] {
				return nil, fmt.Errorf("port group %d: target port %d is 0 or in another group too", g.ID, p)
			}
			ports[p] = true
		}
	}
	return groups, nil
}

// portGroup is a group and how it came to its state.
type portGroup struct {
	PortGroup
	status byte // STATUS CODE: 1 by SET TARGET PORT GROUPS, 2 by itself
}

func newPortGroups(list []PortGroup) (groups []portGroup) {
	for _, g := range list {
		groups = append(groups, portGroup{PortGroup: g})
	}
	return groups
}

// groupOf returns the group of a port, nil if it is in none. Disk.mu is held.
func (d *Disk) groupOf(port uint16) *portGroup {
	for i := range d.groups {
		if slices.Contains(d.groups[i].Ports, port) {
			return &d.groups[i]
		}
	}
	return nil
}

// accessOf is the state that a nexus has access in. Ports that are in no group
// are always active. Disk.mu is held.
func (d *Disk) accessOf(n *nexus) AccessState {
	if g := d.groupOf(n.who.port); g != nil {
		return g.State
	}
	return ActiveOptimized
}

// accessDenied returns why a command can't run in a state.
func accessDenied(s AccessState, c class) Sense {
	switch {
	case c&anyAccess != 0, s <= ActiveNonOptimized:
	case s == Standby && c&standbyAccess == 0:
		return Sense{Key: NotReady, Code: ASCNotReadyStandby}
	case s == Unavailable:
		return Sense{Key: NotReady, Code: ASCNotReadyUnavailable}
	case s == Transitioning:
		return Sense{Key: NotReady, Code: ASCNotReadyTransition}
	}
	return Sense{}
}

// SetAccess changes the state of a target port group, as a disk array does when
// a controller fails: every nexus is told by a unit attention.
func (d *Disk) SetAccess(group uint16, s AccessState) error {
	if !s.valid() {
		return fmt.Errorf("lun: there is no access state %#x", uint8(s))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.groups {
		if d.groups[i].ID == group {
			d.groups[i].State, d.groups[i].status = s, 2
			d.accessChanged(nil)
			return nil
		}
	}
	return fmt.Errorf("lun: there is no port group %d", group)
}

// accessChanged works out anew what each nexus has, and tells all but one.
// Disk.mu is held.
func (d *Disk) accessChanged(but *nexus) {
	for _, n := range *d.nexuses.Load() {
		n.access.Store(uint32(d.accessOf(n)))
	}
	d.attendOthers(but, ASCAsymmetricAccessChanged)
}

// reportPortGroups is SPC-5 6.38.
func (d *Disk) reportPortGroups(_ *nexus, c *Command) Sense {
	b := make([]byte, 4, 256)
	switch c.CDB[1] >> 5 {
	case 0:
	case 1: // extended header; transitions take no time
		b = append(b, 0x10, 0, 0, 0)
	default:
		return InvalidField(1, 7)
	}
	d.mu.Lock()
	for _, g := range d.groups {
		state := byte(g.State)
		if g.Preferred {
			state |= 0x80
		}
		// T_SUP, U_SUP, S_SUP, AN_SUP, AO_SUP
		b = append(b, state, 0x8f, byte(g.ID>>8), byte(g.ID), 0, g.status, 0, byte(len(g.Ports)))
		for _, p := range g.Ports {
			b = append(b, 0, 0, byte(p>>8), byte(p))
		}
	}
	d.mu.Unlock()
	put32(b, uint32(len(b)-4))
	c.Reply(b, uint64(be32(c.CDB[6:])))
	return Sense{}
}

// maxGroupList bounds the parameter list of SET TARGET PORT GROUPS.
const maxGroupList = 4 + 4*256

// setPortGroups is SPC-5 6.45: all of the list or nothing.
func (d *Disk) setPortGroups(n *nexus, c *Command) Sense {
	size := be32(c.CDB[6:])
	if size == 0 {
		return Sense{}
	}
	if size < 4 || size%4 != 0 || size > maxGroupList {
		return Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	list := c.Gather(uint64(size))
	if uint32(len(list)) < size {
		return Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	c.OutLen = uint64(size)
	d.mu.Lock()
	defer d.mu.Unlock()
	groups := slices.Clone(d.groups)
	for at := 4; at < len(list); at += 4 {
		state, id := AccessState(list[at]&0x0f), be16(list[at+2:])
		i := slices.IndexFunc(groups, func(g portGroup) bool { return g.ID == id })
		switch {
		case i < 0:
			return InvalidParameter(at+2, 7)
		case state > Unavailable:
			return InvalidParameter(at, 3)
		}
		groups[i].State, groups[i].status = state, 1
	}
	d.groups = groups
	d.accessChanged(n)
	return Sense{}
}
