package lun

import (
	"slices"
	"time"
)

var diagnosticOps = []op{
	{name: "SEND DIAGNOSTIC", usage: "1d f4 00 ffff 00", class: writes | medium, moves: takes(3, 2), run: (*Disk).sendDiagnostic, seconds: 60},
	{name: "RECEIVE DIAGNOSTIC RESULTS", usage: "1c 01 ff ffff 00", class: writes | standbyAccess, moves: allocates(3, 2), run: (*Disk).receiveDiagnostic},
	{name: "READ BUFFER(10)", usage: "3c 1f ff ffffff ffffff 00", class: writes | standbyAccess, moves: allocates(6, 3), run: (*Disk).readBuffer},
	{name: "WRITE BUFFER", usage: "3b 1f ff ffffff ffffff 00", class: writes | standbyAccess, moves: takes(6, 3), run: (*Disk).writeBuffer},
	{name: "READ DEFECT DATA(10)", usage: "37 00 1f 00000000 ffff 00", class: reads | medium, moves: allocates(7, 2), run: (*Disk).defects},
	{name: "READ DEFECT DATA(12)", usage: "b7 1f ffffffff ffffffff 00 00", class: reads | medium, moves: allocates(6, 4), run: (*Disk).defects},
}

// selfTest is one result for the log page (SPC-5 7.3.21).
type selfTest struct {
	code, result byte
	hours        uint16
	lba          uint64
	sense        Sense
}

// maxSelfTests is how many results the page has, always.
const maxSelfTests = 20

// sendDiagnostic runs a self-test (SPC-5 6.42). Each kind reads both ends of
// the medium and is done when its status comes, those for the background too.
func (d *Disk) sendDiagnostic(_ *nexus, c *Command) Sense {
	code := c.CDB[1] >> 5
	length := int(be16(c.CDB[3:]))
	switch selfTest := c.CDB[1]&4 != 0; {
	case length > 0 && (selfTest || code != 0): // a self-test takes no page
		return InvalidField(3, 7)
	case length > 0 && c.CDB[1]&0x10 == 0: // PF: of no format that is known
		return InvalidField(1, 4)
	case selfTest && code != 0:
		return InvalidField(1, 7)
	case selfTest:
		// The default self-test: no result is kept of it.
		return d.testEnds()
	case code == 0:
		return diagnosticPage(c, length)
	case code == 3, code == 7:
		return InvalidField(1, 7)
	case code == 4: // abort a background test: none is ever running
		return InvalidField(1, 7)
	}
	s := d.testEnds()
	r := selfTest{code: code, hours: uint16(min(time.Since(d.born)/time.Hour, 0xffff)), lba: 1<<64 - 1, sense: s}
	if s.Key != NoSense {
		r.result, r.lba = 7, s.Info
	}
	d.mu.Lock()
	d.selfTests = slices.Insert(d.selfTests, 0, r)
	d.selfTests = d.selfTests[:min(len(d.selfTests), maxSelfTests)]
	d.mu.Unlock()
	if foreground := code >= 5; foreground && s.Key != NoSense {
		return Sense{Key: HardwareError, Code: ASCSelfTestFailed}
	}
	return Sense{}
}

// diagnosticPage takes the page that asks for the list of pages, which RECEIVE
// DIAGNOSTIC RESULTS returns (SPC-5 7.2.10).
func diagnosticPage(c *Command, length int) Sense {
	c.OutLen = uint64(length)
	switch page := c.Gather(uint64(length)); {
	case length == 0:
	case length < 4 || len(page) < length:
		return Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	case page[0] != 0:
		return InvalidParameter(0, 7)
	case page[2] != 0 || page[3] != 0:
		return InvalidParameter(2, 7)
	case length > 4:
		return Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	return Sense{}
}

func (d *Disk) testEnds() Sense {
	if s := d.count.reading.note(d.readable(0, 1)); s.Key != NoSense {
		return s
	}
	return d.count.reading.note(d.readable(d.Blocks()-1, 1))
}

func (d *Disk) selfTestLog() []logParameter {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]logParameter, maxSelfTests)
	for i := range list {
		v := make([]byte, 16)
		if i < len(d.selfTests) {
			r := d.selfTests[i]
			v[0] = r.code<<5 | r.result
			put16(v[2:], r.hours)
			put64(v[4:], r.lba)
			v[12], v[13], v[14] = byte(r.sense.Key), byte(r.sense.Code>>8), byte(r.sense.Code)
		}
		list[i] = binaryList(uint16(i+1), v...)
	}
	return list
}

// receiveDiagnostic has the list of pages only (SPC-5 7.2.10).
func (d *Disk) receiveDiagnostic(_ *nexus, c *Command) Sense {
	if c.CDB[1]&1 == 1 && c.CDB[2] != 0 {
		return InvalidField(2, 7)
	}
	c.Reply([]byte{0, 0, 0, 1, 0}, uint64(be16(c.CDB[3:])))
	return Sense{}
}

// Modes of READ BUFFER and WRITE BUFFER (SPC-5 6.18, 6.49).
const (
	bufferCombined       = 0x00 // header and data
	bufferData           = 0x02
	bufferDescriptor     = 0x03
	bufferMicrocode      = 0x04 // 04 to 07: download, with offsets, and save
	bufferMicrocodeLast  = 0x07
	bufferEcho           = 0x0a
	bufferEchoDescriptor = 0x0b
	bufferDeferred       = 0x0d // 0D, 0E: download, to be activated by 0F
	bufferActivate       = 0x0f
)

const (
	bufferSize = 64 << 10
	echoSize   = 4096

	// maxMicrocode is the most that a microcode image may have.
	maxMicrocode = 8 << 20
)

func (d *Disk) readBuffer(_ *nexus, c *Command) Sense {
	mode, id := c.CDB[1], c.CDB[2]
	offset, allocation := be24(c.CDB[3:]), uint64(be24(c.CDB[6:]))
	switch mode {
	case bufferCombined, bufferData, bufferDescriptor:
		if id != 0 {
			return InvalidField(2, 7)
		}
	case bufferEcho, bufferEchoDescriptor:
	default:
		return InvalidField(1, 4)
	}
	switch mode {
	case bufferCombined, bufferData:
		if offset > bufferSize || mode == bufferCombined && offset != 0 {
			return InvalidField(3, 7)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.buffer == nil {
			d.buffer = make([]byte, bufferSize)
		}
		if mode == bufferData {
			c.Reply(d.buffer[offset:], allocation)
			break
		}
		header := []byte{0, bufferSize >> 16, bufferSize >> 8 & 0xff, bufferSize & 0xff}
		c.Reply(append(header, d.buffer...), allocation)
	case bufferDescriptor:
		c.Reply([]byte{0, bufferSize >> 16, bufferSize >> 8 & 0xff, bufferSize & 0xff}, allocation)
	case bufferEcho:
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.echo == nil {
			// Nothing was written that could come back.
			return Sense{Key: IllegalRequest, Code: ASCCommandSequenceError}
		}
		c.Reply(d.echo, allocation)
	case bufferEchoDescriptor:
		c.Reply([]byte{0, 0, echoSize >> 8, echoSize & 0xff}, allocation)
	}
	return Sense{}
}

func (d *Disk) writeBuffer(n *nexus, c *Command) Sense {
	mode, id := c.CDB[1], c.CDB[2]
	offset, size := be24(c.CDB[3:]), be24(c.CDB[6:])
	limit := uint32(maxMicrocode)
	switch {
	case mode == bufferData:
		limit = bufferSize
	case mode == bufferEcho:
		limit, offset = echoSize, 0
	case mode >= bufferMicrocode && mode <= bufferMicrocodeLast, mode == bufferDeferred, mode == bufferDeferred+1:
	case mode == bufferActivate:
		return d.activateMicrocode(n)
	default:
		return InvalidField(1, 4)
	}
	switch {
	case id != 0 && mode != bufferEcho:
		return InvalidField(2, 7)
	case offset > limit:
		return InvalidField(3, 7)
	case size > limit-offset:
		return InvalidField(6, 7)
	}
	data := c.Gather(uint64(size))
	if uint32(len(data)) < size {
		return Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	c.OutLen = uint64(size)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch mode {
	case bufferData:
		if d.buffer == nil {
			d.buffer = make([]byte, bufferSize)
		}
		copy(d.buffer[offset:], data)
	case bufferEcho:
		d.echo = append(d.echo[:0:0], data...)
	case bufferDeferred, bufferDeferred + 1:
		d.microcode = true
	default:
		d.attendOthers(n, ASCMicrocodeChanged)
	}
	return Sense{}
}

// activateMicrocode puts microcode into use that was downloaded before. What it
// says is of no matter to this disk.
func (d *Disk) activateMicrocode(n *nexus) Sense {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.microcode {
		return Sense{Key: IllegalRequest, Code: ASCCommandSequenceError}
	}
	d.microcode = false
	d.attendOthers(n, ASCMicrocodeChanged)
	return Sense{}
}

// defects answers with empty lists (SBC-4 5.17, 5.18). For a format that a disk
// without cylinders can't have, it is the short block format and RECOVERED ERROR.
func (d *Disk) defects(_ *nexus, c *Command) (s Sense) {
	at, lists := 2, c.CDB[2]
	if c.CDB[0] == 0xb7 {
		at, lists = 1, c.CDB[1]
	}
	switch lists & 7 {
	case 0, 3: // short block, long block
	case 7:
		return InvalidField(at, 2) // reserved
	default:
		lists &^= 7
		s = Sense{Key: RecoveredError, Code: ASCDefectListNotFound}
	}
	if c.CDB[0] == 0xb7 {
		c.Reply([]byte{0, lists, 0, 0, 0, 0, 0, 0}, uint64(be32(c.CDB[6:])))
	} else {
		c.Reply([]byte{0, lists, 0, 0}, uint64(be16(c.CDB[7:])))
	}
	return s
}
