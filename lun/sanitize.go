package lun

// SANITIZE (SBC-4 5.30) and FORMAT UNIT (SBC-4 5.4).

var eraseOps = []op{
	{name: "FORMAT UNIT", usage: "04 f8 00 00 03 00", class: writes | loaded | long, moves: formatLength, run: (*Disk).format, lasts: eraseTimeout},
	{name: "SANITIZE OVERWRITE", usage: "48 a1 0000000000 ffff 00", class: writes | loaded | long, moves: takes(7, 2), run: (*Disk).sanitize, lasts: eraseTimeout},
	{name: "SANITIZE BLOCK ERASE", usage: "48 a2 0000000000 0000 00", class: writes | loaded | long, run: (*Disk).sanitize, lasts: eraseTimeout},
	{name: "SANITIZE CRYPTOGRAPHIC ERASE", usage: "48 a3 0000000000 0000 00", class: writes | loaded | long, run: (*Disk).sanitize, lasts: eraseTimeout},
	{name: "SANITIZE EXIT FAILURE MODE", usage: "48 bf 0000000000 0000 00", class: writes, run: (*Disk).exitFailureMode},
}

const (
	sanitizeOverwrite = 0x01

	// allowExit is AUSE: EXIT FAILURE MODE may be used after a failure.
	allowExit = 0x20
)

func (d *Disk) sanitize(_ *nexus, c *Command) Sense {
	if s := d.writeProtected(); s.Key != NoSense {
		return s
	}
	work := d.eraseAll
	if c.CDB[1]&0x1f == sanitizeOverwrite {
		block, s := d.overwritePattern(c)
		if s.Key != NoSense {
			return s
		}
		// Of several passes the last is what remains, which INVERT never inverts. The
		// others leave nothing behind in a store that overwrites in place.
		work = func(j *job) Sense { return d.overwrite(j, block) }
	}
	failed := sanitizeFailed
	if c.CDB[1]&allowExit == 0 {
		failed |= sanitizeStuck
	}
	return d.erase(c, c.CDB[1]&0x80 != 0, ASCNotReadySanitizeInProgress, sanitizing, failed, work)
}

// overwritePattern returns the block that an OVERWRITE leaves everywhere.
func (d *Disk) overwritePattern(c *Command) ([]byte, Sense) {
	n := uint64(be16(c.CDB[7:]))
	if n <= 4 || n > d.blockSize()+4 {
		return nil, InvalidField(7, 7)
	}
	list := c.Gather(n)
	if uint64(len(list)) < n {
		return nil, Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	c.OutLen = n
	size, count := uint64(be16(list[2:])), list[0]&0x1f
	switch {
	case list[0]&0x60 != 0: // TEST
		return nil, InvalidParameter(0, 6)
	case count == 0: // OVERWRITE COUNT
		return nil, InvalidParameter(0, 4)
	case size == 0, size != n-4: // INITIALIZATION PATTERN LENGTH
		return nil, InvalidParameter(2, 7)
	}
	return repeat(list[4:], d.blockSize()), Sense{}
}

// exitFailureMode makes a disk whose SANITIZE failed usable again, if that
// SANITIZE had allowed for it.
func (d *Disk) exitFailureMode(_ *nexus, c *Command) Sense {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch state := d.state.Load(); {
	case state&(sanitizing|formatting) != 0:
		return d.notReady(state)
	case state&sanitizeStuck != 0:
		return InvalidField(1, 4)
	default:
		d.state.Store(state &^ sanitizeFailed)
	}
	return Sense{}
}

func formatLength(_ *Disk, cdb []byte) (out, in uint64) {
	if cdb[1]&0x10 == 0 { // FMTDATA
		return 0, 0
	}
	// The longest header and initialization pattern.
	return 8 + 4 + 4096, 0
}

// format makes the medium as the block descriptor of the mode parameters has it,
// with protection as asked for. Defect lists are taken if they are empty.
func (d *Disk) format(n *nexus, c *Command) Sense {
	if s := d.writeProtected(); s.Key != NoSense {
		return s
	}
	if c.CDB[4]&3 == 3 {
		return InvalidField(4, 1)
	}
	usage, immed := byte(0), false
	work := d.eraseAll
	d.mu.Lock()
	g := d.described()
	d.mu.Unlock()
	if c.CDB[1]&0x10 != 0 {
		f, s := formatList(c, g.blockSize)
		if s.Key != NoSense {
			return s
		}
		usage, immed = f.usage, f.immed
		if f.block != nil && !isZero(f.block) {
			work = func(j *job) Sense {
				return d.pieces(j, func(off, n uint64) Sense {
					return d.fill(f.block, off/d.blockSize(), n/d.blockSize())
				})
			}
		}
	} else if c.CDB[1]&0x2f != 0 {
		return InvalidField(1, highBit(c.CDB[1]&0x2f))
	}
	kind, s := d.formatKind(c.CDB[1]>>6, usage)
	if s.Key != NoSense {
		return s
	}
	return d.erase(c, immed, ASCNotReadyFormatInProgress, formatting, formatFailed, func(j *job) Sense {
		was, before := d.protectedAs.Load(), d.geometry()
		d.shape.Store(g)
		if s := work(j); s.Key != NoSense {
			return s
		}
		d.protectedAs.Store(kind)
		d.mu.Lock()
		d.pending = nil
		if was != kind || before.blockSize != g.blockSize || before.blocks != g.blocks {
			d.attendOthers(n, ASCCapacityDataHasChanged)
		}
		d.mu.Unlock()
		return Sense{}
	})
}

// formatKind is the protection type that FMTPINFO and PROTECTION FIELD USAGE ask
// for (SBC-4 table 40).
func (d *Disk) formatKind(info, usage byte) (kind uint32, s Sense) {
	switch {
	case info == 0 && usage == 0:
		return 0, Sense{}
	case info == 0:
		return 0, InvalidParameter(0, 2)
	case info == 1, !d.protectable():
		return 0, InvalidField(1, 7)
	case info == 2 && usage == 0:
		return 1, Sense{}
	case info == 3 && usage <= 1:
		return 2 + uint32(usage), Sense{}
	}
	return 0, InvalidParameter(0, 2)
}

// formatData is the parameter list of FORMAT UNIT.
type formatData struct {
	usage byte // PROTECTION FIELD USAGE
	immed bool
	block []byte // the initialization pattern, nil for the usual one
}

// formatList reads it for a medium with blocks of size bytes.
func formatList(c *Command, size uint64) (f formatData, s Sense) {
	short := Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	most, _ := formatLength(nil, c.CDB)
	list := c.Gather(most)
	header := 4
	if c.CDB[1]&0x20 != 0 { // LONGLIST
		header = 8
	}
	if len(list) < header {
		return f, short
	}
	f.usage, f.immed = list[0]&7, list[1]&2 != 0
	options := list[1]
	defects := uint32(be16(list[2:]))
	if header == 8 {
		if list[3] != 0 { // P_I_INFORMATION, PROTECTION INTERVAL EXPONENT
			return f, InvalidParameter(3, highBit(list[3]))
		}
		defects = be32(list[4:])
	}
	switch {
	case list[0]&^7 != 0:
		return f, InvalidParameter(0, highBit(list[0]&^7))
	case options&0x05 != 0: // obsolete, vendor specific
		return f, InvalidParameter(1, highBit(options&0x05))
	case options&0x78 != 0 && options&0x80 == 0: // DPRY, DCRT, STPF, IP without FOV
		return f, InvalidParameter(1, highBit(options&0x78))
	case defects != 0:
		return f, InvalidParameter(header-1, 7)
	}
	c.OutLen = uint64(header)
	if options&0x08 != 0 { // IP
		return f, formatPattern(c, list[header:], header, size, &f)
	}
	return f, Sense{}
}

// formatPattern reads the initialization pattern descriptor (SBC-4 5.4.2.3).
func formatPattern(c *Command, list []byte, at int, size uint64, f *formatData) Sense {
	if len(list) < 4 {
		return Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	n := int(be16(list[2:]))
	switch {
	case list[0]&^0x20 != 0: // SI is for the hidden parts, of which there are none
		return InvalidParameter(at, highBit(list[0]&^0x20))
	case list[1] > 1, list[1] == 0 && n != 0:
		return InvalidParameter(at+1, 7)
	case list[1] == 1 && (n == 0 || uint64(n) > size):
		return InvalidParameter(at+2, 7)
	case len(list) < 4+n:
		return Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	c.OutLen += uint64(4 + n)
	if n > 0 {
		f.block = repeat(list[4:4+n], size)
	}
	return Sense{}
}

// duringSanitize tells whether a command is allowed while SANITIZE is running (SBC-5
// 4.11.2).
func duringSanitize(e *entry, cdb []byte) bool {
	switch e.Name {
	case "INQUIRY", "READ CAPACITY(10)", "READ CAPACITY(16)", "REPORT LUNS", "REQUEST SENSE",
		"REPORT SUPPORTED OPERATION CODES", "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS":
		return true
	case "LOG SENSE":
		const temperature = 0x0d
		return cdb[2]&0x3f == temperature && cdb[3] == 0
	case "MODE SENSE(6)", "MODE SENSE(10)":
		switch cdb[2] & 0x3f {
		case cachingPage, controlPage, 0x18, 0x19, exceptionPage: // 18, 19: see portPages
			return cdb[3] == 0
		}
	}
	return false
}
