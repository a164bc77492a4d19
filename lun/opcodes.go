package lun

import "cmp"

var opcodeOps = []op{
	{name: "REPORT SUPPORTED OPERATION CODES", usage: "a3 0c 87 ff ffff ffffffff 00 00", class: writes | standbyAccess, moves: allocates(6, 4), run: (*Disk).reportOpcodes},
	{name: "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", usage: "a3 0d 80 000000 ffffffff 00 00", class: writes | standbyAccess, moves: allocates(6, 4), run: (*Disk).reportTMFs},
}

// reportOpcodes is SPC-5 6.35.
func (d *Disk) reportOpcodes(_ *nexus, c *Command) Sense {
	timeouts := c.CDB[2]&0x80 != 0
	code, action := c.CDB[3], int32(be16(c.CDB[4:]))
	allocation := uint64(be32(c.CDB[6:]))
	var one *entry
	switch list := d.offered(code); c.CDB[2] & 7 {
	case 0:
		c.Reply(d.allOpcodes(timeouts), allocation)
		return Sense{}
	case 1:
		if hasAction(code) && len(list) > 0 {
			return InvalidField(2, 2)
		}
		if len(list) > 0 {
			one = list[0]
		}
	case 2:
		if !hasAction(code) && len(list) > 0 {
			return InvalidField(2, 2)
		}
		one = d.table.action(list, action)
	case 3:
		if one = d.table.action(list, action); one == nil && action == 0 && len(list) > 0 && !hasAction(code) {
			one = list[0]
		}
	default:
		return InvalidField(2, 2)
	}
	c.Reply(d.oneOpcode(one, timeouts), allocation)
	return Sense{}
}

// offered returns the commands of an operation code that the disk has now.
func (d *Disk) offered(code byte) []*entry {
	if code != variable || d.protectionType() == 2 {
		return d.table[code]
	}
	var list []*entry
	for _, e := range d.table[code] {
		if e.class&type2 == 0 {
			list = append(list, e)
		}
	}
	return list
}

func (d *Disk) allOpcodes(timeouts bool) []byte {
	b := make([]byte, 4, 4096)
	for code := range 256 {
		for _, e := range d.offered(byte(code)) {
			desc := [8]byte{0: e.code}
			if e.action >= 0 {
				put16(desc[2:], uint16(e.action))
				desc[5] |= 1 // SERVACTV
			}
			if timeouts {
				desc[5] |= 2 // CTDP
			}
			put16(desc[6:], uint16(e.length()))
			b = append(b, desc[:]...)
			if timeouts {
				b = d.appendTimeouts(b, e)
			}
		}
	}
	put32(b, uint32(len(b)-4))
	return b
}

func (d *Disk) oneOpcode(e *entry, timeouts bool) []byte {
	if e == nil {
		return []byte{0, 1, 0, 0} // not supported
	}
	b := []byte{0, 3, 0, byte(e.length())} // as the standard says
	b = append(b, e.usage...)
	if d.normalACA() {
		b[4+e.control] |= naca
	}
	if timeouts {
		b[1] |= 0x80 // CTDP
		b = d.appendTimeouts(b, e)
	}
	return b
}

// appendTimeouts appends the command timeouts descriptor (SPC-5 6.35.4).
func (d *Disk) appendTimeouts(b []byte, e *entry) []byte {
	seconds := cmp.Or(e.seconds, usual)
	if e.lasts != nil {
		seconds = e.lasts(d)
	}
	var t [12]byte
	put16(t[:], uint16(len(t)-2))
	put32(t[8:], seconds)
	return append(b, t[:]...)
}

// reportTMFs says which task management functions the unit's target has
// (SPC-5 6.36).
func (d *Disk) reportTMFs(_ *nexus, c *Command) Sense {
	allocation := uint64(be32(c.CDB[6:]))
	if allocation < 4 {
		return InvalidField(6, 7)
	}
	b := make([]byte, 16)
	put16(b, uint16(d.tasks.Offered()))
	if c.CDB[2]&0x80 == 0 { // REPD
		b = b[:4]
	} else {
		// Those that wait for commands to end may take long, the others don't.
		b[3] = 12
		b[4] = 1 // TMFTMOV
		put16(b[6:], uint16(d.tasks.Offered()&shortFunctions))
		put32(b[8:], usual*10)
		put32(b[12:], 10)
	}
	c.Reply(b, allocation)
	return Sense{}
}

// shortFunctions end at once. Time-outs are in tenths of a second.
const shortFunctions = ClearACAFunction | QueryTaskFunction | QueryAsyncEventFunction | QueryTaskSetFunction

// normalACA tells whether commands may have NACA (NORMACA): the target sees to
// ACA conditions, if it has CLEAR ACA.
func (d *Disk) normalACA() bool { return d.tasks.Offered()&ClearACAFunction != 0 }
