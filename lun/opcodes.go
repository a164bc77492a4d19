package lun

var opcodeOps = []op{
	{name: "REPORT SUPPORTED OPERATION CODES", usage: "a3 0c 87 ff ffff ffffffff 00 00", class: writes | standbyAccess, moves: allocates(6, 4), run: (*Disk).reportOpcodes},
	{name: "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", usage: "a3 0d 80 000000 ffffffff 00 00", class: writes | standbyAccess, moves: allocates(6, 4), run: (*Disk).reportTMFs},
}

func (d *Disk) reportOpcodes(_ *nexus, c *Command) Sense {
	return ReportOpcodes(c, d.offered, d.normalACA())
}

// offered returns the commands of an operation code that the disk has now.
func (d *Disk) offered(code byte) []*CDBUsage {
	if code != variable || d.protectionType() == 2 {
		return d.table[code]
	}
	var list []*CDBUsage
	for _, u := range d.table[code] {
		if u.Of.(*entry).class&type2 == 0 {
			list = append(list, u)
		}
	}
	return list
}

// reportTMFs says which task management functions the unit's target has for the
// nexus (SPC-5 6.36).
func (d *Disk) reportTMFs(n *nexus, c *Command) Sense {
	allocation := uint64(be32(c.CDB[6:]))
	if allocation < 4 {
		return InvalidField(6, 7)
	}
	b := make([]byte, 16)
	functions := d.tasks.OfferedTo(n.id)
	put16(b, uint16(functions))
	if c.CDB[2]&0x80 == 0 { // REPD
		b = b[:4]
	} else {
		// Those that wait for commands to end may take long, the others don't.
		b[3] = 12
		b[4] = 1 // TMFTMOV
		put16(b[6:], uint16(functions&shortFunctions))
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
