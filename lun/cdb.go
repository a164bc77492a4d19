package lun

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// CDBUsage is which bits of a command's CDB a logical unit looks at (SPC-5 6.35.3).
type CDBUsage struct {
	Name   string // of the command, as in the standard: "READ(10)"
	Code   uint8
	Action int32 // service action, -1 if the operation code has none

	// Seconds, if not nil, returns the recommended time-out where it isn't the usual one.
	Seconds func() uint32

	// Of is what the unit keeps for the command.
	Of any

	bits    []byte // as reported
	mask    []byte // what may be set in a CDB
	control int    // where the CONTROL byte is
}

// naca is the NACA bit of the CONTROL byte (SAM-5 5.2).
const naca = 0x04

// NewCDBUsage reads usage data in hexadecimal, as long as the CDB is: the operation code,
// a 1 for each bit that the unit looks at, and the service action where there is one. Bits
// that are 0 must be 0. It panics if that isn't a CDB.
func NewCDBUsage(name, usage string) *CDBUsage {
	b, err := hex.DecodeString(strings.ReplaceAll(usage, " ", ""))
	if err != nil || len(b) < 6 {
		panic(fmt.Sprintf("lun: usage bitmap of %s: %v", name, err))
	}
	u := &CDBUsage{Name: name, Code: b[0], Action: -1, bits: b, mask: slices.Clone(b), control: len(b) - 1}
	u.mask[0] = 0xff
	if u.Code == variable {
		u.control = 1
	}
	u.mask[u.control] |= naca
	if hasAction(u.Code) {
		u.Action = actionOf(u.Code, b)
		if u.Code == variable {
			u.mask[7], u.mask[8], u.mask[9] = 0xff, 0xff, 0xff
		} else {
			u.mask[1] |= 0x1f
		}
	}
	return u
}

// Check returns what is wrong with a CDB: a bit that the usage data doesn't have, or its
// length.
func (u *CDBUsage) Check(cdb []byte) Sense {
	if len(cdb) < len(u.mask) {
		return Sense{Key: IllegalRequest, Code: ASCInvalidFieldInCDB}
	}
	for i, m := range u.mask {
		if bad := cdb[i] &^ m; bad != 0 {
			return InvalidField(i, highBit(bad))
		}
	}
	if u.Code == variable && int(cdb[7]) != len(u.mask)-8 {
		return InvalidField(7, 7)
	}
	return Sense{}
}

// highBit is the bit that a field pointer names: the highest that is wrong.
func highBit(bad byte) uint8 { return uint8(bits.Len8(bad) - 1) }

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

// CommandTable is the commands of a logical unit by operation code, those with service
// actions in ascending order.
type CommandTable [256][]*CDBUsage

// Add puts a command into the table.
func (t *CommandTable) Add(u *CDBUsage) {
	t[u.Code] = append(t[u.Code], u)
	slices.SortFunc(t[u.Code], func(a, b *CDBUsage) int { return cmp.Compare(a.Action, b.Action) })
}

// Find returns the command that the CDB asks for, and what is wrong with the CDB. The
// command may be nil then.
func (t *CommandTable) Find(cdb []byte) (*CDBUsage, Sense) {
	if len(cdb) < 6 {
		return nil, Sense{Key: IllegalRequest, Code: ASCInvalidCommandOperationCode}
	}
	list := t[cdb[0]]
	if len(list) == 0 {
		return nil, Sense{Key: IllegalRequest, Code: ASCInvalidCommandOperationCode}
	}
	u := list[0]
	if u.Action >= 0 {
		if u = ofAction(list, actionOf(cdb[0], cdb)); u == nil {
			if cdb[0] == variable {
				return nil, InvalidField(8, 7)
			}
			return nil, InvalidField(1, 4)
		}
	}
	return u, u.Check(cdb)
}

func ofAction(list []*CDBUsage, action int32) *CDBUsage {
	for _, u := range list {
		if u.Action == action {
			return u
		}
	}
	return nil
}

// ReportOpcodes answers REPORT SUPPORTED OPERATION CODES (SPC-5 6.35). offered returns the
// commands of an operation code that the unit has now. normalACA says that commands may
// have NACA.
func ReportOpcodes(c *Command, offered func(code byte) []*CDBUsage, normalACA bool) Sense {
	timeouts := c.CDB[2]&0x80 != 0
	code, action := c.CDB[3], int32(be16(c.CDB[4:]))
	allocation := uint64(be32(c.CDB[6:]))
	var one *CDBUsage
	switch list := offered(code); c.CDB[2] & 7 {
	case 0:
		c.Reply(allOpcodes(offered, timeouts), allocation)
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
		one = ofAction(list, action)
	case 3:
		if one = ofAction(list, action); one == nil && action == 0 && len(list) > 0 && !hasAction(code) {
			one = list[0]
		}
	default:
		return InvalidField(2, 2)
	}
	c.Reply(oneOpcode(one, timeouts, normalACA), allocation)
	return Sense{}
}

func allOpcodes(offered func(code byte) []*CDBUsage, timeouts bool) []byte {
	b := make([]byte, 4, 4096)
	for code := range 256 {
		for _, u := range offered(byte(code)) {
			desc := [8]byte{0: u.Code}
			if u.Action >= 0 {
				put16(desc[2:], uint16(u.Action))
				desc[5] |= 1 // SERVACTV
			}
			if timeouts {
				desc[5] |= 2 // CTDP
			}
			put16(desc[6:], uint16(len(u.bits)))
			b = append(b, desc[:]...)
			if timeouts {
				b = u.appendTimeouts(b)
			}
		}
	}
	put32(b, uint32(len(b)-4))
	return b
}

func oneOpcode(u *CDBUsage, timeouts, normalACA bool) []byte {
	if u == nil {
		return []byte{0, 1, 0, 0} // not supported
	}
	b := []byte{0, 3, 0, byte(len(u.bits))} // as the standard says
	b = append(b, u.bits...)
	if normalACA {
		b[4+u.control] |= naca
	}
	if timeouts {
		b[1] |= 0x80 // CTDP
		b = u.appendTimeouts(b)
	}
	return b
}

// appendTimeouts appends the command timeouts descriptor (SPC-5 6.35.4).
func (u *CDBUsage) appendTimeouts(b []byte) []byte {
	seconds := uint32(usual)
	if u.Seconds != nil {
		seconds = u.Seconds()
	}
	var t [12]byte
	put16(t[:], uint16(len(t)-2))
	put32(t[8:], seconds)
	return append(b, t[:]...)
}
