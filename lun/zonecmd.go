package lun

var zoneOps = []op{
	{name: "REPORT ZONES", usage: "95 00 ffffffffffffffff ffffffff bf 00", class: reads | medium, moves: allocates(10, 4), run: (*Disk).reportZones, when: zoned},
	{name: "CLOSE ZONE", usage: "94 01 ffffffffffffffff 0000 0000 01 00", class: writes | medium, run: (*Disk).zoneAction, when: zoned},
	{name: "FINISH ZONE", usage: "94 02 ffffffffffffffff 0000 0000 01 00", class: writes | medium, run: (*Disk).zoneAction, when: zoned},
	{name: "OPEN ZONE", usage: "94 03 ffffffffffffffff 0000 0000 01 00", class: writes | medium, run: (*Disk).zoneAction, when: zoned},
	{name: "RESET WRITE POINTER", usage: "94 04 ffffffffffffffff 0000 0000 01 00", class: writes | medium, run: (*Disk).zoneAction, when: zoned, seconds: 120},
}

const (
	closeZone  = 0x01
	finishZone = 0x02
	openZone   = 0x03
	resetZone  = 0x04
)

// zoneAction is for one zone, or with ALL for those that it makes a difference
// to (ZBC-2 5.2, 5.3, 5.4, 5.7).
func (d *Disk) zoneAction(_ *nexus, c *Command) Sense {
	if s := d.writeProtected(); s.Key != NoSense {
		return s
	}
	action, id, z := c.CDB[1]&0x1f, be64(c.CDB[2:]), d.zones
	if c.CDB[14]&1 == 1 { // ALL
		if action == openZone {
			return z.openClosed()
		}
		for i := range z.list {
			x := &z.list[i]
			if !z.wants(x, action) {
				continue
			}
			if s := d.actOn(x, action); s.Key != NoSense {
				return s
			}
		}
		return Sense{}
	}
	if s := d.beyond(id, 1); s.Key != NoSense {
		return s
	}
	x := z.at(id)
	if id != x.first || x.conventional {
		return InvalidField(2, 7)
	}
	return d.actOn(x, action)
}

// wants tells whether an action for all zones is for this one.
func (z *zones) wants(x *zone, action byte) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	switch x.condition {
	case zoneNoPointer, zoneEmpty:
		return false
	case zoneFull:
		return action == resetZone
	case zoneClosed:
		return action != closeZone
	}
	return true
}

// openClosed opens every closed zone, or none if they are too many.
func (z *zones) openClosed() Sense {
	z.mu.Lock()
	defer z.mu.Unlock()
	closed, explicit := 0, 0
	for i := range z.list {
		switch z.list[i].condition {
		case zoneClosed:
			closed++
		case zoneExplicit:
			explicit++
		}
	}
	if z.max > 0 && closed+explicit > z.max {
		return Sense{Key: DataProtect, Code: ASCInsufficientZoneResources}
	}
	// Only those that are closed now: opening one may close another.
	var list []*zone
	for i := range z.list {
		if z.list[i].condition == zoneClosed {
			list = append(list, &z.list[i])
		}
	}
	for _, x := range list {
		if s := z.openZone(x, zoneExplicit); s.Key != NoSense {
			return s
		}
	}
	return Sense{}
}

func (d *Disk) actOn(x *zone, action byte) Sense {
	if action == resetZone {
		return d.resetZone(x)
	}
	// A write that is going on ends first.
	x.writing.Lock()
	defer x.writing.Unlock()
	if action == finishZone {
		return d.finishZone(x)
	}
	z := d.zones
	z.mu.Lock()
	defer z.mu.Unlock()
	switch {
	case x.condition == zoneFull:
	case action == openZone:
		return z.openZone(x, zoneExplicit)
	case action == closeZone:
		if x.isOpen() {
			z.closeZone(x)
		}
	}
	return Sense{}
}

// finishZone makes a zone full, whose writing is held. The rest of it stays as
// zeros.
func (d *Disk) finishZone(x *zone) Sense {
	z := d.zones
	z.mu.Lock()
	if x.condition != zoneFull && !x.isOpen() {
		if s := z.openZone(x, zoneImplicit); s.Key != NoSense {
			z.mu.Unlock()
			return s
		}
	}
	written, nonSeq := x.written, x.nonSeq
	z.mu.Unlock()
	if s := d.keepZone(x, written, true, nonSeq); s.Key != NoSense {
		return s
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.setCondition(x, zoneFull)
	return Sense{}
}

// reported tells whether REPORT ZONES with a REPORTING OPTIONS value is about
// zones in a condition, and whether there is that value.
func reported(options byte, c zoneCondition, nonSeq bool) (is, ok bool) {
	switch options {
	case 0x00, 0x3e: // all, all but gap zones
		return true, true
	case 0x01, 0x02, 0x03, 0x04:
		return c == zoneCondition(options), true
	case 0x05:
		return c == zoneFull, true
	case 0x06, 0x07, 0x08, 0x10: // read only, offline, inactive, with RESET
		return false, true
	case 0x11:
		return nonSeq, true
	case 0x3f:
		return c == zoneNoPointer, true
	}
	return false, false
}

// reportZones is ZBC-2 5.6.
func (d *Disk) reportZones(_ *nexus, c *Command) Sense {
	const header, size = 64, 64
	lba, allocation, options := be64(c.CDB[2:]), uint64(be32(c.CDB[10:])), c.CDB[14]&0x3f
	if s := d.beyond(lba, 1); s.Key != NoSense {
		return s
	}
	if _, ok := reported(options, zoneEmpty, false); !ok {
		return InvalidField(14, 5)
	}
	partial := c.CDB[14]&0x80 != 0
	z := d.zones
	kind := byte(2) // sequential write required
	if z.aware {
		kind = 3 // sequential write preferred
	}
	fit := int(min(uint64(len(z.list)), (max(min(allocation, c.Room()), header)-header)/size))
	b := make([]byte, header, header+fit*size)
	matching := 0
	z.mu.Lock()
	for i := int(lba / z.size); i < len(z.list); i++ {
		x := &z.list[i]
		if is, _ := reported(options, x.condition, x.nonSeq); !is {
			continue
		}
		if matching++; matching > fit {
			if partial {
				matching--
				break
			}
			continue
		}
		var desc [size]byte
		desc[0], desc[1] = kind, byte(x.condition)<<4
		if x.nonSeq {
			desc[1] |= 2 // NON_SEQ
		}
		pointer := x.first + x.written
		switch x.condition {
		case zoneNoPointer:
			desc[0], pointer = 1, 1<<64-1
		case zoneFull:
			pointer = 1<<64 - 1
		}
		put64(desc[8:], z.size)
		put64(desc[16:], x.first)
		put64(desc[24:], pointer)
		b = append(b, desc[:]...)
	}
	z.mu.Unlock()
	put32(b, uint32(matching*size))
	b[4] = 1 // SAME: all zones are alike
	if z.list[0].conventional {
		b[4] = 3 // but for their type
	}
	put64(b[8:], d.Blocks()-1)
	c.Reply(b, allocation)
	return Sense{}
}

// zonedCharacteristics is the VPD page B6h (ZBC-2 6.5.2).
func (d *Disk) zonedCharacteristics() []byte {
	b := make([]byte, 60)
	none := uint32(1<<32 - 1)
	put32(b[4:], none)  // optimal number of open sequential write preferred zones
	put32(b[8:], none)  // and of those that were written out of order
	put32(b[12:], none) // maximum number of open sequential write required zones
	at := 12
	if d.zones.aware {
		at = 4
	} else {
		b[0] = 1 // URSWRZ: reads aren't restricted
	}
	if most := d.opt.Zones.MaxOpen; most > 0 {
		put32(b[at:], uint32(most))
	}
	return b
}
