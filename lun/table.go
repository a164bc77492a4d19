package lun

import (
	"encoding/hex"
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

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
	code   byte
	action int32  // service action, -1 without
	usage  []byte // as reported
	mask   []byte // what may be set in a CDB

	control int // where the CONTROL byte is
}

// naca is the NACA bit of the CONTROL byte (SAM-5 5.2).
const naca = 0x04

// length is the length of the CDB.
func (e *entry) length() int { return len(e.usage) }

// table is the commands of a disk by operation code, those with service
// actions in ascending order.
type table [256][]*entry

// ops is every command there is, in no order that matters.
func ops() []op {
	return slices.Concat(primaryOps, modeOps, mediumOps, blockOps, verifyOps, provisionOps, statusOps, exchangeOps, scatteredOps, reserveOps, opcodeOps, eraseOps, logOps, diagnosticOps, infoOps, copyOps, copyResultOps, odxOps, atomicOps, aluaOps, badOps, zoneOps, streamOps)
}

// newTable makes the table for d.
func newTable(d *Disk) *table {
	t := new(table)
	all := ops()
	for i := range all {
		o := &all[i]
		if o.when != nil && !o.when(d) {
			continue
		}
		e := newEntry(o, d.protectable())
		if e.code == variable && d.opt.ShortCommands {
			continue
		}
		t[e.code] = append(t[e.code], e)
	}
	for _, list := range t {
		slices.SortFunc(list, func(a, b *entry) int { return int(a.action - b.action) })
	}
	return t
}

func newEntry(o *op, protectable bool) *entry {
	usage, err := hex.DecodeString(strings.ReplaceAll(o.usage, " ", ""))
	if err != nil || len(usage) < 6 {
		panic(fmt.Sprintf("lun: usage bitmap of %s: %v", o.name, err))
	}
	e := &entry{op: o, code: usage[0], action: -1, usage: usage}
	if o.class&protect != 0 && protectable {
		usage[flagsByte(usage)] |= 0xe0
	}
	e.mask = slices.Clone(usage)
	e.mask[0] = 0xff
	e.control = len(usage) - 1
	if e.code == variable {
		e.control = 1
	}
	e.mask[e.control] |= naca
	if hasAction(e.code) {
		e.action = actionOf(e.code, usage)
		if e.code == variable {
			e.mask[7], e.mask[8], e.mask[9] = 0xff, 0xff, 0xff
		} else {
			e.mask[1] |= 0x1f
		}
	}
	return e
}

// variable is the operation code of the CDBs of variable length (SPC-5 4.2.3).
const variable = 0x7f

// hasAction tells whether the operation code is told from others by a service
// action. Those whose commands have none (SPC-5 table 34) are among them if a
// unit has to refuse each value by itself.
func hasAction(code byte) bool {
	switch code {
	case 0x48, 0x5e, 0x5f, variable, 0x83, 0x84, 0x94, 0x95, 0x9b, 0x9d, 0x9e, 0x9f, 0xa3, 0xa4, 0xa9, 0xab:
		return true
	}
	return false
}

func actionOf(code byte, cdb []byte) int32 {
	if code == variable {
		if len(cdb) < 10 {
			return -1
		}
		return int32(be16(cdb[8:]))
	}
	return int32(cdb[1] & 0x1f)
}

// find returns the command that the CDB asks for, or what is wrong with it.
func (t *table) find(cdb []byte) (*entry, Sense) {
	if len(cdb) < 6 {
		return nil, Sense{Key: IllegalRequest, Code: ASCInvalidCommandOperationCode}
	}
	list := t[cdb[0]]
	if len(list) == 0 {
		return nil, Sense{Key: IllegalRequest, Code: ASCInvalidCommandOperationCode}
	}
	e := list[0]
	if e.action >= 0 {
		if e = t.action(list, actionOf(cdb[0], cdb)); e == nil {
			if cdb[0] == variable {
				return nil, InvalidField(8, 7)
			}
			return nil, InvalidField(1, 4)
		}
	}
	return e, e.check(cdb)
}

func (t *table) action(list []*entry, action int32) *entry {
	for _, e := range list {
		if e.action == action {
			return e
		}
	}
	return nil
}

// check returns what is wrong with a CDB: a bit that its usage bitmap doesn't
// have, or its length.
func (e *entry) check(cdb []byte) Sense {
	if len(cdb) < len(e.mask) {
		return Sense{Key: IllegalRequest, Code: ASCInvalidFieldInCDB}
	}
	for i, m := range e.mask {
		if bad := cdb[i] &^ m; bad != 0 {
			return InvalidField(i, highBit(bad))
		}
	}
	if e.code == variable && int(cdb[7]) != len(e.mask)-8 {
		return InvalidField(7, 7)
	}
	return Sense{}
}

// highBit is the bit that a field pointer names: the highest that is wrong.
func highBit(bad byte) uint8 { return uint8(bits.Len8(bad) - 1) }

// allocates is for commands that answer with at most an allocation length,
// which lies in width bytes at at.
func allocates(at, width int) func(*Disk, []byte) (out, in uint64) {
	return func(_ *Disk, cdb []byte) (out, in uint64) { return 0, number(cdb, at, width) }
}

// takes is for commands with a parameter list, whose length lies likewise.
func takes(at, width int) func(*Disk, []byte) (out, in uint64) {
	return func(_ *Disk, cdb []byte) (out, in uint64) { return number(cdb, at, width), 0 }
}
