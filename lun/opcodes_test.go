package lun_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"lunlab/lun"
)

// usedFrom are the CDBs in which TestUsedBits sets bits, by operation code and service
// action, where one of zeros is refused by itself or says little.
var usedFrom = map[string]string{
	"15":    "15 10 000000 00",                       // PF
	"1a":    "1a 00 3f 00 ff 00",                     // all pages
	"3b":    "3b 02 00 000000 000000 00",             // data
	"3c":    "3c 02 00 000000 000004 00",             // data
	"3f":    "3f 40 00000000 00 0000 00",             // WR_UNCOR
	"48/01": "48 01 0000000000 0008 00",              // overwrite, with a pattern
	"4d":    "4d 00 00 00 00 0000 00ff 00",           // the list of pages
	"55":    "55 10 0000000000 0000 00",              // PF
	"5a":    "5a 00 3f 00 000000 00ff 00",            // all pages
	"94/01": "94 01 0000000000000080 00000000 00 00", // a zone that isn't a conventional one
	"94/02": "94 02 0000000000000080 00000000 00 00",
	"94/03": "94 03 0000000000000080 00000000 00 00",
	"94/04": "94 04 0000000000000080 00000000 00 00",
	"9f/11": "9f 51 0000000000000000 00000000 00 00", // WR_UNCOR
	"a0":    "a0 00 00 000000 00000010 00 00",
	"a3/0d": "a3 0d 00 000000 00000004 00 00",
}

// usedRefused are the bits that are looked at, and refused all the same on some disk
// when one of them is set in the CDB of usedFrom: FROM-TO:MASK of bytes, and why.
var usedRefused = []struct{ commands, bits, why string }{
	{"04", "1-1:e8", "FMTPINFO, LONGLIST and CMPLST need FMTDATA"},
	{"12", "2-2:ff", "a PAGE CODE needs EVPD"},
	{"1a 5a", "2-2:3f 3-3:ff", "there are no such pages and subpages"},
	{"4c 4d", "2-2:2d 3-3:ff", "there are no such pages and subpages"},
	{"4c", "7-8:ff", "no log parameter can be set"},
	{"4d", "5-6:ff", "the list of pages has no parameters to begin at"},
	{"1b", "3-3:0f 4-4:c0", "such power conditions and modifiers are reserved"},
	{"1b", "4-4:02", "a medium that can't be removed isn't ejected"},
	{"1d", "1-1:80", "there is no self-test in the background to be aborted"},
	{"1d", "3-4:ff", "a parameter list needs PF"},
	{"2f 8f af", "1-1:04", "BYTCHK 10b is reserved"},
	{"7f/0a", "10-10:04", "BYTCHK 10b is reserved"},
	{"3b", "1-1:13", "there are no such modes"},
	{"3c", "1-1:14", "there are no such modes"},
	{"3b 3c", "2-2:ff 3-3:fe", "there is one buffer, of 64 KiB"},
	{"3b", "6-6:fe", "there is one buffer, of 64 KiB"},
	{"3f 9f/11", "1-1:40", "without WR_UNCOR data would be written, which there isn't in a block's long form"},
	{"41 93", "1-1:10", "ANCHOR needs UNMAP"},
	{"48/01", "7-7:fe 8-8:08", "a pattern has 1 byte to a block"},
	{"7f/0e", "2-2:06", "such BMOPs are reserved"},
	{"83/1c 84/05 84/06 84/07", "2-5:ff", "no copy has such a list identifier"},
	{"84/00 84/04", "2-2:ff", "no copy has such a list identifier"},
	{"84/00 84/04 84/05 84/06 84/07", "10-13:ff", "nor has one the list identifier 0"},
	{"94/01 94/02 94/03 94/04", "9-9:ff", "no zone that is written in sequence begins there"},
	{"95/00", "14-14:20", "such REPORTING OPTIONS are reserved"},
	{"9c", "9-9:07 13-13:07", "it is part of a physical block"},
	{"9e/12", "14-14:08", "such REPORT TYPEs are reserved"},
	{"7f/12", "10-10:08", "such REPORT TYPEs are reserved"},
	{"9e/16", "4-4:ff 5-5:f8", "there are no such streams"},
	{"9f/12", "8-8:fe 10-11:ff 12-12:f0", "it is more than can be scattered, or has no room for it"},
	{"7f/11", "16-16:fe 28-29:ff 30-30:f0", "it is more than can be scattered, or has no room for it"},
	{"a0", "2-2:ec", "such SELECT REPORTs are reserved"},
	{"a0", "9-9:10", "an allocation length below 16"},
	{"a3/0d", "9-9:04", "an allocation length below 4"},
	{"a2", "1-2:ff 3-3:fe", "there is but the list of protocols"},
	{"a3/05", "10-10:fa", "there are no such types of information"},
	{"a4/06", "10-10:fa", "there are no such types of information"},
	{"a4/06", "6-8:ff 9-9:80", "it is longer than can be kept"},
	{"a3/0a", "1-1:c0", "such PARAMETER DATA FORMATs are reserved"},
	{"a3/0c", "2-2:06", "such REPORTING OPTIONS are reserved, or another command's"},
}

// usedPlace is a byte of a command's CDB.
type usedPlace struct {
	command string
	at      int
}

// changes are the operation codes after which the disk may not be as before: FORMAT
// UNIT, MODE SELECT, START STOP UNIT, SANITIZE.
var changes = []byte{0x04, 0x15, 0x55, 0x1b, 0x48}

// TestUsedBits sets each bit alone that REPORT SUPPORTED OPERATION CODES says is
// looked at: no other is refused with a field pointer than those listed.
func TestUsedBits(t *testing.T) {
	refused, listed := map[usedPlace]byte{}, map[usedPlace]byte{}
	for _, r := range usedRefused {
		for _, command := range strings.Fields(r.commands) {
			for _, bits := range strings.Fields(r.bits) {
				var from, to int
				var mask byte
				if _, err := fmt.Sscanf(bits, "%d-%d:%x", &from, &to, &mask); err != nil {
					t.Fatalf("%q: %v", bits, err)
				}
				for at := from; at <= to; at++ {
					listed[usedPlace{command, at}] |= mask
				}
			}
		}
	}
	for _, o := range fuzzKinds {
		if o.ReadOnly || o.WriteThrough || o.EraseTime > 0 {
			continue // it takes what others do
		}
		for _, u := range commandsOf(t, o) {
			h := newHost(t, 1<<20, o)
			for at := 1; at < len(u.usage); at++ {
				for bit := range byte(8) {
					if u.fixed(at, bit) || u.usage[at]>>bit&1 == 0 {
						continue
					}
					cdb := u.from(t)
					cdb[at] ^= 1 << bit
					if bytes.IndexByte(changes, cdb[0]) >= 0 {
						h = newHost(t, 1<<20, o)
					}
					out, _ := h.disk.DataLength(cdb)
					if n := uint64(cdb[len(cdb)-3]); cdb[0] == 0x89 {
						out = out / (2*n + 1) * 2 * n // COMPARE AND WRITE has a block too many
					}
					a := h.run(cdb, make([]byte, min(out, 1<<20)), 512)
					if a.status == lun.CheckCondition && a.sense[12] == 0x24 && a.sense[15]&0x80 != 0 {
						p := usedPlace{u.name(), at}
						refused[p] |= 1 << bit
						if listed[p]>>bit&1 == 0 {
							t.Errorf("%x: sense %x, though bit %d of byte %d is used", cdb, a.sense, bit, at)
						}
					}
				}
			}
		}
	}
	for p, mask := range listed {
		if more := mask &^ refused[p]; more != 0 {
			t.Errorf("%s: bits %02x of byte %d are listed as refused, and aren't", p.command, more, p.at)
		}
	}
}

// command is one that a disk has.
type command struct {
	usage  []byte // as reported
	action bool   // it has a service action
}

// commandsOf asks for the commands of a disk.
func commandsOf(t testing.TB, o lun.DiskOptions) (list []command) {
	h := newHost(t, 1<<20, o)
	all := h.do("a3 0c 00 00 0000 0000ffff 00 00", nil, 65535).good().data[4:]
	for ; len(all) >= 8; all = all[8:] {
		one := []byte{0xa3, 0x0c, 0x03, all[0], all[2], all[3], 0, 0, 1, 0, 0, 0}
		list = append(list, command{bytes.Clone(h.run(one, nil, 256).good().data[4:]), all[5]&1 == 1})
	}
	return list
}

// fixed tells whether a bit is part of the service action, or of the length of a CDB
// of variable length.
func (u command) fixed(at int, bit byte) bool {
	if u.usage[0] == 0x7f {
		return at >= 7 && at < 10
	}
	return u.action && at == 1 && bit < 5
}

func (u command) name() string {
	switch {
	case !u.action:
		return fmt.Sprintf("%02x", u.usage[0])
	case u.usage[0] == 0x7f:
		return fmt.Sprintf("7f/%02x", u.usage[9])
	}
	return fmt.Sprintf("%02x/%02x", u.usage[0], u.usage[1]&0x1f)
}

// from is the CDB in which bits are set.
func (u command) from(t testing.TB) []byte {
	if s, ok := usedFrom[u.name()]; ok {
		return unhex(t, s)
	}
	cdb := make([]byte, len(u.usage))
	cdb[0] = u.usage[0]
	switch {
	case cdb[0] == 0x7f:
		copy(cdb[7:], u.usage[7:10])
	case u.action:
		cdb[1] = u.usage[1] & 0x1f
	}
	return cdb
}
