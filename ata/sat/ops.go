package sat

import "lunlab/lun"

// op is a SCSI command that the unit has.
type op struct {
	name  string
	usage string // see [lun.NewCDBUsage]
	class class

	// moves says what DataLength returns. nil is none.
	moves func(u *Unit, cdb []byte) (out, in uint64)

	// run does the command. It leaves the status alone to end with GOOD.
	run func(u *Unit, x *nexus, c *lun.Command) lun.Sense

	// when says for which drives there is the command. nil is all.
	when func(id *identity) bool

	seconds uint32 // recommended time-out, 0 for the usual one
}

// class says how a command stands to the state of the unit.
type class uint8

const (
	// quiet leaves unit attentions pending (SAM-5 5.14).
	quiet class = 1 << iota

	// medium needs a drive that START STOP UNIT hasn't stopped.
	medium
)

// flushing is the time-out of what may have to empty the write cache, erasing that of
// what goes over all of the medium.
const (
	flushing = 300
	erasing  = 24 * 3600
)

// ops is filled by init, as REPORT SUPPORTED OPERATION CODES is one of them.
var ops []op

func init() {
	ops = []op{
		{name: "TEST UNIT READY", usage: "00 00 00 00 00 00", class: medium, run: (*Unit).testUnitReady},
		{name: "REQUEST SENSE", usage: "03 01 00 00 ff 00", class: quiet, moves: allocates(4, 1), run: (*Unit).requestSenseData},
		{name: "INQUIRY", usage: "12 01 ff ffff 00", class: quiet, moves: allocates(3, 2), run: (*Unit).inquiry},
		{name: "REPORT LUNS", usage: "a0 00 ff 000000 ffffffff 00 00", class: quiet, moves: allocates(6, 4), run: (*Unit).reportLUNs},
		{name: "START STOP UNIT", usage: "1b 01 00 0f f7 00", run: (*Unit).startStop, seconds: flushing},
		{name: "READ CAPACITY(10)", usage: "25 00 00000000 0000 00 00", class: medium, moves: readCapacity10Length, run: (*Unit).readCapacity10},
		{name: "READ CAPACITY(16)", usage: "9e 10 0000000000000000 ffffffff 00 00", class: medium, moves: allocates(10, 4), run: (*Unit).readCapacity16},
		{name: "READ(6)", usage: "08 1fffff ff 00", class: medium, moves: movesIn, run: (*Unit).read},
		{name: "READ(10)", usage: "28 18 ffffffff 3f ffff 00", class: medium, moves: movesIn, run: (*Unit).read},
		{name: "READ(12)", usage: "a8 18 ffffffff ffffffff 3f 00", class: medium, moves: movesIn, run: (*Unit).read},
		{name: "READ(16)", usage: "88 18 ffffffffffffffff ffffffff 3f 00", class: medium, moves: movesIn, run: (*Unit).read},
		{name: "WRITE(6)", usage: "0a 1fffff ff 00", class: medium, moves: movesOut, run: (*Unit).write},
		{name: "WRITE(10)", usage: "2a 18 ffffffff 3f ffff 00", class: medium, moves: movesOut, run: (*Unit).write},
		{name: "WRITE(12)", usage: "aa 18 ffffffff ffffffff 3f 00", class: medium, moves: movesOut, run: (*Unit).write},
		{name: "WRITE(16)", usage: "8a 18 ffffffffffffffff ffffffff 3f 00", class: medium, moves: movesOut, run: (*Unit).write},
		{name: "WRITE AND VERIFY(10)", usage: "2e 12 ffffffff 3f ffff 00", class: medium, moves: movesOut, run: (*Unit).writeVerify},
		{name: "WRITE AND VERIFY(12)", usage: "ae 12 ffffffff ffffffff 3f 00", class: medium, moves: movesOut, run: (*Unit).writeVerify},
		{name: "WRITE AND VERIFY(16)", usage: "8e 12 ffffffffffffffff ffffffff 3f 00", class: medium, moves: movesOut, run: (*Unit).writeVerify},
		{name: "VERIFY(10)", usage: "2f 16 ffffffff 3f ffff 00", class: medium, moves: movesVerify, run: (*Unit).verify},
		{name: "VERIFY(12)", usage: "af 16 ffffffff ffffffff 3f 00", class: medium, moves: movesVerify, run: (*Unit).verify},
		{name: "VERIFY(16)", usage: "8f 16 ffffffffffffffff ffffffff 3f 00", class: medium, moves: movesVerify, run: (*Unit).verify},
		{name: "SYNCHRONIZE CACHE(10)", usage: "35 06 ffffffff 3f ffff 00", class: medium, run: (*Unit).synchronize, seconds: flushing},
		{name: "SYNCHRONIZE CACHE(16)", usage: "91 06 ffffffffffffffff ffffffff 3f 00", class: medium, run: (*Unit).synchronize, seconds: flushing},
		{name: "UNMAP", usage: "42 00 00000000 3f ffff 00", class: medium, moves: takes(7, 2), run: (*Unit).unmap, when: zeroing},
		{name: "WRITE SAME(10)", usage: "41 00 ffffffff 3f ffff 00", class: medium, moves: movesSame, run: (*Unit).writeSame},
		{name: "WRITE SAME(16)", usage: "93 01 ffffffffffffffff ffffffff 3f 00", class: medium, moves: movesSame, run: (*Unit).writeSame, when: not(zeroing)},
		{name: "WRITE SAME(16)", usage: "93 09 ffffffffffffffff ffffffff 3f 00", class: medium, moves: movesSame, run: (*Unit).writeSame, when: zeroing},
		{name: "MODE SENSE(6)", usage: "1a 08 ff ff ff 00", moves: allocates(4, 1), run: (*Unit).modeSense},
		{name: "MODE SENSE(10)", usage: "5a 18 ff ff 000000 ffff 00", moves: allocates(7, 2), run: (*Unit).modeSense},
		{name: "MODE SELECT(6)", usage: "15 10 0000 ff 00", moves: takes(4, 1), run: (*Unit).modeSelect, seconds: flushing},
		{name: "MODE SELECT(10)", usage: "55 10 0000000000 ffff 00", moves: takes(7, 2), run: (*Unit).modeSelect, seconds: flushing},
		{name: "LOG SENSE", usage: "4d 00 ff ff 00 ffff ffff 00", moves: allocates(7, 2), run: (*Unit).logSense},
		{name: "SEND DIAGNOSTIC", usage: "1d e4 00 0000 00", run: (*Unit).sendDiagnostic, when: hasSMART, seconds: erasing},
		{name: "SECURITY PROTOCOL IN", usage: "a2 ff ffff 80 00 ffffffff 00 00", moves: securityLength, run: (*Unit).securityIn, when: func(id *identity) bool { return id.trusted }},
		{name: "SANITIZE OVERWRITE", usage: "48 a1 0000000000 ffff 00", class: medium, moves: takes(7, 2), run: (*Unit).sanitizeUnit, when: sanitizes(0x4000), seconds: erasing},
		{name: "SANITIZE BLOCK ERASE", usage: "48 a2 0000000000 0000 00", class: medium, run: (*Unit).sanitizeUnit, when: sanitizes(0x8000), seconds: erasing},
		{name: "SANITIZE EXIT FAILURE MODE", usage: "48 1f 0000000000 0000 00", run: (*Unit).sanitizeUnit, when: sanitizes(0x1000)},
		{name: "REPORT SUPPORTED OPERATION CODES", usage: "a3 0c 87 ff ffff ffffffff 00 00", moves: allocates(6, 4), run: (*Unit).reportOpcodes},
		{name: "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", usage: "a3 0d 00 000000 ffffffff 00 00", moves: allocates(6, 4), run: (*Unit).reportTMFs},
		{name: "ATA PASS-THROUGH(12)", usage: "a1 ff ff ff ff ffffff ff ff 00 00", moves: movesThrough, run: (*Unit).passThrough, seconds: erasing},
		{name: "ATA PASS-THROUGH(16)", usage: "85 ff ff ffff ffff ffffffffffff ff ff 00", moves: movesThrough, run: (*Unit).passThrough, seconds: erasing},
		{name: "ATA PASS-THROUGH(32)", usage: "7f 00 00000000 00 18 1ff0 ff ff 0000 ffffffffffff ffff ffff ff ff 00 ff ffffffff", moves: movesThrough, run: (*Unit).passThrough, seconds: erasing},
	}
}

func zeroing(id *identity) bool  { return id.zeroed }
func hasSMART(id *identity) bool { return id.smart }

func not(when func(*identity) bool) func(*identity) bool {
	return func(id *identity) bool { return !when(id) }
}

// sanitizes is for drives with these bits in word 59.
func sanitizes(bits uint16) func(*identity) bool {
	return func(id *identity) bool { return id.sanitize && id.word(59)&bits != 0 }
}

// allocates is for commands that answer with at most an allocation length, which lies in
// width bytes at at; takes for those with a parameter list, whose length lies likewise.
func allocates(at, width int) func(*Unit, []byte) (out, in uint64) {
	return func(_ *Unit, cdb []byte) (out, in uint64) { return 0, number(cdb[at:][:width]) }
}

func takes(at, width int) func(*Unit, []byte) (out, in uint64) {
	return func(_ *Unit, cdb []byte) (out, in uint64) { return number(cdb[at:][:width]), 0 }
}

func number(b []byte) (v uint64) {
	for _, x := range b {
		v = v<<8 | uint64(x)
	}
	return v
}

func (u *Unit) reportOpcodes(_ *nexus, c *lun.Command) lun.Sense {
	return lun.ReportOpcodes(c, func(code byte) []*lun.CDBUsage { return u.table[code] }, false)
}

// reportTMFs says which task management functions the unit's target has.
func (u *Unit) reportTMFs(_ *nexus, c *lun.Command) lun.Sense {
	allocation := be32(c.CDB[6:])
	if allocation < 4 {
		return lun.InvalidField(6, 7)
	}
	var b [4]byte
	put16(b[:], uint16(u.tasks.OfferedTo(c.Nexus)))
	c.Reply(b[:], uint64(allocation))
	return lun.Sense{}
}

// reportLUNs answers for a unit that is alone. A target with several answers in its place.
func (u *Unit) reportLUNs(x *nexus, c *lun.Command) lun.Sense {
	allocation := uint64(be32(c.CDB[6:]))
	if allocation < 16 {
		return lun.InvalidField(6, 7)
	}
	var b [16]byte
	switch c.CDB[2] {
	case 0x00, 0x02, 0x11:
		put32(b[:], 8)
		c.Reply(b[:], allocation)
	case 0x01, 0x10, 0x12:
		c.Reply(b[:8], allocation)
	default:
		return lun.InvalidField(2, 7)
	}
	u.lunsReported(x)
	return lun.Sense{}
}
