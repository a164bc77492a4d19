package target

import (
	"encoding/binary"

	"lunlab/lun"
)

// codeInvalidMessage is INVALID MESSAGE ERROR.
const codeInvalidMessage = 0x4900

// Operation codes of the commands that the target itself answers.
const (
	opTestUnitReady = 0x00
	opRequestSense  = 0x03
	opInquiry       = 0x12
	opReportLUNs    = 0xa0
)

// commands are what the target looks at in them.
var commands lun.CommandTable

func init() {
	for name, usage := range map[string]string{
		"TEST UNIT READY": "00 00 00 00 00 00",
		"REQUEST SENSE":   "03 01 00 00 ff 00",
		"INQUIRY":         "12 01 ff ffff 00",
		"REPORT LUNS":     "a0 00 ff 000000 ffffffff 00 00",
	} {
		commands.Add(lun.NewCDBUsage(name, usage))
	}
}

// standardInquiryLen is the least that standard INQUIRY data may be (SPC-5 6.6.2).
const standardInquiryLen = 36

// stub is a logical unit that the target plays itself.
type stub struct {
	peripheral byte      // PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE
	state      lun.Sense // what REQUEST SENSE tells, and TEST UNIT READY unless it is none
}

var (
	// absentUnit is what an address without a logical unit answers: "not capable of
	// supporting a peripheral device", of unknown type.
	absentUnit = stub{0x7f, lun.Sense{Key: lun.IllegalRequest, Code: lun.ASCLogicalUnitNotSupported}}

	// wellKnownUnit is the REPORT LUNS well known logical unit (SPC-5 8.2). The
	// command that it is there for, every nexus answers itself.
	wellKnownUnit = stub{0x1e, lun.Sense{}}
)

func (stub) Blocking() bool               { return false }
func (stub) Notify(*lun.Nexus, lun.Event) {}

// DataLength is also for REPORT LUNS.
func (stub) DataLength(cdb []byte) (out, in uint64) {
	u, s := commands.Find(cdb)
	if s.Key != lun.NoSense {
		return 0, 0
	}
	switch u.Code {
	case opInquiry:
		return 0, min(uint64(binary.BigEndian.Uint16(cdb[3:])), standardInquiryLen)
	case opRequestSense:
		return 0, min(uint64(cdb[4]), lun.MaxSense)
	case opReportLUNs: // no more than there can be to say
		return 0, min(uint64(binary.BigEndian.Uint32(cdb[6:])), 8+8*(MaxNumber+2))
	}
	return 0, 0
}

// Execute answers the commands that a unit always has. Where there is none, the others
// and the pages of INQUIRY fail for that.
func (u stub) Execute(c *lun.Command) {
	found, s := commands.Find(c.CDB)
	has := func(op byte) bool { return found != nil && found.Code == op }
	absent := u.state.Key != lun.NoSense
	switch {
	case absent && !has(opInquiry) && !has(opRequestSense):
		c.Fail(u.state)
	case s.Key != lun.NoSense:
		c.Fail(s)
	case has(opRequestSense):
		data := u.state.AppendFixed
		if descriptor := c.CDB[1]&1 == 1; descriptor {
			data = u.state.AppendDescriptor
		}
		answer(c, data(nil), uint32(c.CDB[4]))
	case has(opTestUnitReady):
		c.Status = lun.Good
	case c.CDB[1]&1 == 1 && absent:
		c.Fail(u.state)
	case c.CDB[1]&1 == 1 || c.CDB[2] != 0:
		c.Fail(lun.InvalidField(2, 7))
	default:
		answer(c, inquiryData(u.peripheral), uint32(binary.BigEndian.Uint16(c.CDB[3:])))
	}
}

// inquiryData is standard INQUIRY data with the given peripheral qualifier and
// device type.
func inquiryData(peripheral byte) []byte {
	b := make([]byte, standardInquiryLen)
	b[0] = peripheral
	b[2] = 0x07 // SPC-5
	b[3] = 0x12 // HISUP, response data format 2
	b[4] = byte(len(b) - 5)
	b[7] = 0x02 // CMDQUE
	copy(b[8:], "LUNLAB  ")
	copy(b[16:], "NO LOGICAL UNIT ")
	if peripheral == 0x1e {
		copy(b[16:], "WELL KNOWN LU   ")
	}
	copy(b[32:], "1   ")
	return b
}
