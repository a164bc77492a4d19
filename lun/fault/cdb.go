package fault

import (
	"encoding/binary"
	"math"

	"lunlab/lun"
)

// layout says where a CDB has its logical blocks (SBC-4 5).
type layout struct {
	code   uint8
	action int32 // -1: none

	lba, lbaWidth int
	n, nWidth     int // how many; width 0: one

	access access

	// blocks says that as many blocks as n says are transferred, one after another,
	// so that a part of the command can be done by itself.
	blocks bool
}

// access is what a command does with the medium.
type access uint8

const (
	reads access = 1 << iota
	writes
)

// layouts are the commands that name blocks in their CDBs. UNMAP names them in its
// parameter list, FORMAT UNIT and SANITIZE mean all.
var layouts = []layout{
	{0x08, -1, 1, 3, 4, 1, reads, true},             // READ(6)
	{0x0a, -1, 1, 3, 4, 1, writes, true},            // WRITE(6)
	{0x28, -1, 2, 4, 7, 2, reads, true},             // READ(10)
	{0x2a, -1, 2, 4, 7, 2, writes, true},            // WRITE(10)
	{0x2e, -1, 2, 4, 7, 2, writes, true},            // WRITE AND VERIFY(10)
	{0x2f, -1, 2, 4, 7, 2, reads, false},            // VERIFY(10)
	{0x34, -1, 2, 4, 7, 2, reads, false},            // PRE-FETCH(10)
	{0x35, -1, 2, 4, 7, 2, 0, false},                // SYNCHRONIZE CACHE(10)
	{0x3f, -1, 2, 4, 0, 0, 0, false},                // WRITE LONG(10)
	{0x41, -1, 2, 4, 7, 2, writes, false},           // WRITE SAME(10)
	{variable, 0x0009, 12, 8, 28, 4, reads, true},   // READ(32)
	{variable, 0x000a, 12, 8, 28, 4, reads, false},  // VERIFY(32)
	{variable, 0x000b, 12, 8, 28, 4, writes, true},  // WRITE(32)
	{variable, 0x000c, 12, 8, 28, 4, writes, true},  // WRITE AND VERIFY(32)
	{variable, 0x000d, 12, 8, 28, 4, writes, false}, // WRITE SAME(32)
	{variable, 0x0018, 12, 8, 28, 4, writes, false}, // WRITE STREAM(32)
	{0x88, -1, 2, 8, 10, 4, reads, true},            // READ(16)
	{0x89, -1, 2, 8, 13, 1, reads | writes, false},  // COMPARE AND WRITE
	{0x8a, -1, 2, 8, 10, 4, writes, true},           // WRITE(16)
	{0x8b, -1, 2, 8, 10, 4, reads | writes, true},   // ORWRITE(16)
	{0x8e, -1, 2, 8, 10, 4, writes, true},           // WRITE AND VERIFY(16)
	{0x8f, -1, 2, 8, 10, 4, reads, false},           // VERIFY(16)
	{0x90, -1, 2, 8, 10, 4, reads, false},           // PRE-FETCH(16)
	{0x91, -1, 2, 8, 10, 4, 0, false},               // SYNCHRONIZE CACHE(16)
	{0x93, -1, 2, 8, 10, 4, writes, false},          // WRITE SAME(16)
	{0x9a, -1, 2, 8, 12, 2, writes, false},          // WRITE STREAM(16)
	{0x9c, -1, 2, 8, 12, 2, writes, false},          // WRITE ATOMIC(16)
	{0x9e, 0x12, 2, 8, 0, 0, 0, false},              // GET LBA STATUS(16)
	{0x9f, 0x11, 2, 8, 0, 0, 0, false},              // WRITE LONG(16)
	{0xa8, -1, 2, 4, 6, 4, reads, true},             // READ(12)
	{0xaa, -1, 2, 4, 6, 4, writes, true},            // WRITE(12)
	{0xae, -1, 2, 4, 6, 4, writes, true},            // WRITE AND VERIFY(12)
	{0xaf, -1, 2, 4, 6, 4, reads, false},            // VERIFY(12)
}

const (
	variable   = 0x7f // CDBs of variable length
	unmap      = 0x42
	formatUnit = 0x04
	sanitize   = 0x48

	inquiry      = 0x12
	requestSense = 0x03
	reportLUNs   = 0xa0
)

// byCode finds layouts by operation code.
var byCode = func() (t [256][]*layout) {
	for i := range layouts {
		l := &layouts[i]
		t[l.code] = append(t[l.code], l)
	}
	return t
}()

// extent is what a command does to which blocks.
type extent struct {
	layout *layout // nil for those that don't name blocks in their CDBs
	access access
	first  Blocks
	more   []Blocks // of UNMAP, those after the first
	ok     bool     // there are any
}

// extentOf finds the blocks of a command.
func extentOf(c *lun.Command) extent {
	if len(c.CDB) < 6 {
		return extent{}
	}
	switch c.CDB[0] {
	case unmap:
		return unmapped(c)
	case formatUnit, sanitize:
		return extent{access: writes, first: Blocks{0, math.MaxUint64}, ok: true}
	}
	for _, l := range byCode[c.CDB[0]] {
		if l.action >= 0 && l.action != lun.ServiceAction(c.CDB) {
			continue
		}
		if len(c.CDB) < max(l.lba+l.lbaWidth, l.n+l.nWidth) {
			return extent{}
		}
		x := extent{layout: l, access: l.access}
		lba, n := number(c.CDB[l.lba:][:l.lbaWidth]), uint64(1)
		if l.nWidth > 0 {
			n = number(c.CDB[l.n:][:l.nWidth])
		}
		switch l.code {
		case 0x08, 0x0a:
			lba &= 0x1fffff
			if n == 0 {
				n = 256
			}
		case 0x35, 0x91, 0x34, 0x90, 0x41, 0x93:
			if n == 0 { // up to the last one
				n = math.MaxUint64
			}
		}
		if n == 0 {
			return extent{}
		}
		x.first, x.ok = Blocks{lba, lba + min(n-1, math.MaxUint64-lba)}, true
		return x
	}
	return extent{}
}

// maxUnmap bounds how many descriptors of an UNMAP are looked at.
const maxUnmap = 4096

// unmapped is the blocks of an UNMAP (SBC-4 5.29).
func unmapped(c *lun.Command) extent {
	x := extent{access: writes}
	b := c.Gather(8 + 16*maxUnmap)
	for at := 8; at+16 <= len(b); at += 16 {
		lba, n := number(b[at:][:8]), number(b[at+8:][:4])
		if n == 0 {
			continue
		}
		r := Blocks{lba, lba + min(n-1, math.MaxUint64-lba)}
		if !x.ok {
			x.first, x.ok = r, true
		} else {
			x.more = append(x.more, r)
		}
	}
	return x
}

// overlap is the first block of r that the command touches.
func (x *extent) overlap(r Blocks) (lba uint64, ok bool) {
	if !x.ok {
		return 0, false
	}
	if lba, ok = x.first.overlap(r); ok {
		return lba, true
	}
	for _, b := range x.more {
		if lba, ok = b.overlap(r); ok {
			return lba, true
		}
	}
	return 0, false
}

func (b Blocks) overlap(r Blocks) (first uint64, ok bool) {
	first = max(b.First, r.First)
	return first, first <= min(b.Last, r.Last)
}

func number(b []byte) (n uint64) {
	for _, x := range b {
		n = n<<8 | uint64(x)
	}
	return n
}

// shorten returns the CDB of a command for its first n blocks, at least one and
// fewer than it has.
func (l *layout) shorten(cdb []byte, n uint64) []byte {
	s := append([]byte(nil), cdb...)
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	copy(s[l.n:][:l.nWidth], b[8-l.nWidth:])
	return s
}

// BlocksOf returns the blocks that a command names in its CDB, those that an UNMAP
// names first in its parameter list, and all there can be for FORMAT UNIT and SANITIZE.
func BlocksOf(c *lun.Command) (b Blocks, ok bool) {
	x := extentOf(c)
	return x.first, x.ok
}
