package lun

import "slices"

// op is a command that a disk has. Looking a CDB up, refusing what isn't in
// its usage bitmap, reservation conflicts, readiness and REPORT SUPPORTED
// OPERATION CODES all come from its table entry; run does the rest.
type op struct {
	name string

	// usage is the CDB usage data (SPC-5 6.35.3) in hexadecimal, as long as the
	// CDB is: the operation code, a 1 for each bit that the unit looks at, and
	// the service action where there is one. Bits that are 0 must be 0.
	usage string

	class class

	// moves says what DataLength returns. nil is none.
	moves func(d *Disk, cdb []byte) (out, in uint64)

	// run does the command. It leaves the status alone to end with GOOD.
	run func(d *Disk, n *nexus, c *Command) Sense

	// when says which disks have the command. nil is all.
	when func(d *Disk) bool

	// seconds is the recommended time-out, 0 for the usual one. lasts, if not nil,
	// says it instead where that differs from disk to disk.
	seconds uint32
	lasts   func(d *Disk) uint32
}

// class says how a command stands to the state of the unit.
type class uint32

const (
	// reads conflicts with a reservation that keeps others from reading, writes
	// also with one that keeps them from writing (SPC-5 table 67, SBC-4 table 13).
	reads class = 1 << iota
	writes

	// exclusive conflicts with a RESERVE only (SPC-2 5.5.1). The two above do too.
	exclusive

	// medium needs a medium that is ready.
	medium

	// loaded needs a medium that turns, whatever is left on it by a FORMAT UNIT or
	// SANITIZE that failed.
	loaded

	// settled needs that no FORMAT UNIT or SANITIZE is running.
	settled

	// quiet leaves unit attentions pending (SAM-5 5.14).
	quiet

	// anyAccess runs in every state of asymmetric access, standbyAccess in the
	// standby state too (SPC-5 5.17.2.4).
	anyAccess
	standbyAccess

	// protect takes RDPROTECT, WRPROTECT or VRPROTECT where flagsByte says, if the
	// disk can have protection information. run looks at the field.
	protect

	// long may take longer than a caller that isn't to wait should be held up, even
	// over a store in memory. It goes for all commands of the operation code.
	long

	// type2 is there only while the medium has protection of type 2.
	type2
)

// Recommended time-outs in seconds: of most commands, and of those that may have to
// make all durable that a disk has in its write cache.
const (
	usual    = 30
	flushing = 300
)

// entry is an op as one disk has it.
type entry struct {
	*op
	*CDBUsage
}

// ops is every command there is, in no order that matters.
func ops() []op {
	return slices.Concat(primaryOps, modeOps, mediumOps, blockOps, verifyOps, provisionOps, statusOps, exchangeOps, scatteredOps, reserveOps, opcodeOps, eraseOps, logOps, diagnosticOps, infoOps, copyOps, copyResultOps, odxOps, atomicOps, aluaOps, badOps, zoneOps, streamOps)
}

// newTable makes the table for d.
func newTable(d *Disk) *CommandTable {
	t := new(CommandTable)
	all := ops()
	for i := range all {
		o := &all[i]
		if o.when != nil && !o.when(d) {
			continue
		}
		e := newEntry(o, d.protectable())
		if e.Code == variable && d.opt.ShortCommands {
			continue
		}
		switch {
		case o.lasts != nil:
			e.Seconds = func() uint32 { return o.lasts(d) }
		case o.seconds > 0:
			e.Seconds = func() uint32 { return o.seconds }
		}
		t.Add(e.CDBUsage)
	}
	return t
}

func newEntry(o *op, protectable bool) *entry {
	e := &entry{op: o, CDBUsage: NewCDBUsage(o.name, o.usage)}
	e.Of = e
	if o.class&protect != 0 && protectable {
		e.bits[flagsByte(e.bits)] |= 0xe0
		e.mask[flagsByte(e.bits)] |= 0xe0
	}
	return e
}

// find returns the command that the CDB asks for, or what is wrong with it.
func (d *Disk) find(cdb []byte) (*entry, Sense) {
	u, s := d.table.Find(cdb)
	if u == nil {
		return nil, s
	}
	return u.Of.(*entry), s
}

// allocates is for commands that answer with at most an allocation length,
// which lies in width bytes at at.
func allocates(at, width int) func(*Disk, []byte) (out, in uint64) {
	return func(_ *Disk, cdb []byte) (out, in uint64) { return 0, number(cdb, at, width) }
}

// takes is for commands with a parameter list, whose length lies likewise.
func takes(at, width int) func(*Disk, []byte) (out, in uint64) {
	return func(_ *Disk, cdb []byte) (out, in uint64) { return number(cdb, at, width), 0 }
}
