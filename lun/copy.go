package lun

// EXTENDED COPY (SPC-5 6.4). What is told of copies is in copyop.go.

var copyOps = []op{
	{name: "EXTENDED COPY(LID1)", usage: "83 00 0000000000000000 ffffffff 00 00", class: writes | medium | long, moves: takes(10, 4), run: (*Disk).extendedCopy, seconds: 600, when: notZoned},
	{name: "EXTENDED COPY(LID4)", usage: "83 01 0000000000000000 ffffffff 00 00", class: writes | medium | long, moves: takes(10, 4), run: (*Disk).extendedCopy, seconds: 600, when: notZoned},
}

const (
	maxCopyTargets  = 16
	maxCopySegments = 16
	targetSize      = 32 // of an identification descriptor
	segmentSize     = 28 // of a block to block descriptor
	maxCopyList     = maxCopyTargets*targetSize + maxCopySegments*segmentSize
	maxSegment      = 1<<16 - 1 // blocks
	maxCopyHeader   = 48

	identificationTarget = 0xe4
	blockToBlock         = 0x02

	// askedDisk is the CSCD descriptor ID for the disk that is asked.
	askedDisk = 0xffff
)

// copyList is the parameter list of an EXTENDED COPY.
type copyList struct {
	list       uint32 // LIST IDENTIFIER
	named      bool   // it counts
	background bool   // IMMED

	// targets are the disks of the CSCD descriptors by their ID, nil for one that
	// isn't reached. segments are the segment descriptors.
	targets  []*Disk
	segments []byte
}

// segment is a block to block segment descriptor, ready to be done.
type segment struct {
	from, to       *Disk
	fromLBA, toLBA uint64
	bytes          uint64
}

func copyAborted(code uint16) Sense { return Sense{Key: CopyAborted, Code: code} }

// segmentField is copyAborted for a field of the segment descriptor.
func segmentField(code uint16, at int) Sense {
	return Sense{Key: CopyAborted, Code: code, Specific: fieldPointer(0xa8, at, 7)} // SKSV, SD, BPV
}

// failedCopy is the sense data for a source or destination that fails with s.
func failedCopy(s Sense, destination bool) Sense {
	if s.Key == NoSense {
		return s
	}
	return Sense{Key: CopyAborted, Code: ASCThirdPartyDeviceFailure, Copy: &CopyFailure{Sense: s, Destination: destination}}
}

// segmentBeyond is the sense data for blocks that the source or destination doesn't
// have, which initiators know as one without an additional sense code.
func segmentBeyond(s Sense, destination bool, at int) Sense {
	f := segmentField(ASCNone, at)
	f.Copy = &CopyFailure{Sense: s, Destination: destination}
	return f
}

// at adds the number of the segment that was copied.
func (s Sense) at(segment uint16) Sense {
	if s.Key == CopyAborted {
		f := CopyFailure{Segment: segment}
		if s.Copy != nil {
			f.Sense, f.Destination = s.Copy.Sense, s.Copy.Destination
		}
		s.Copy = &f
	}
	return s
}

func (d *Disk) extendedCopy(n *nexus, c *Command) Sense {
	size := be32(c.CDB[10:])
	if size == 0 {
		return Sense{}
	}
	list, s := copyParameters(c, maxCopyHeader+maxCopyList)
	if s.Key != NoSense {
		return s
	}
	l, s := d.parseCopyList(n, list, c.CDB[1] == 1)
	if s.Key != NoSense {
		return s
	}
	c.OutLen = uint64(size)
	op := &copyOperation{who: n.who, list: l.list, named: l.named, action: c.CDB[1], background: l.background}
	if s := d.begin(op, c); s.Key != NoSense {
		return s
	}
	segments := append([]byte(nil), l.segments...) // the command may be gone before the copy is done
	return d.runCopy(op, func() Sense {
		for i := uint16(0); len(segments) > 0; segments, i = segments[segmentSize:], i+1 {
			op.segments.Add(1)
			seg, s := copySegment(segments, l.targets, d)
			if s.Key == NoSense {
				s = seg.run(d, n, op)
			}
			if s.Key != NoSense {
				return s.at(i)
			}
		}
		return Sense{}
	})
}

// copyParameters returns the parameter list of a third-party copy command, most
// bytes at the most.
func copyParameters(c *Command, most uint32) ([]byte, Sense) {
	size := be32(c.CDB[10:])
	short := Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	if size > most {
		return nil, short
	}
	list := c.Gather(uint64(size))
	if len(list) < 16 || uint32(len(list)) < size {
		return nil, short
	}
	return list, Sense{}
}

// parseCopyList reads a parameter list of the format with list identifiers of one
// byte (LID1), or of four, and checks what can be checked before anything is
// copied.
func (d *Disk) parseCopyList(n *nexus, list []byte, long bool) (l copyList, s Sense) {
	usage := list[1] >> 3 & 3 // LIST ID USAGE
	l.named = usage != 3
	header, targetsLen, segmentsLen, inline := 16, uint64(be16(list[2:])), uint64(be32(list[8:])), be32(list[12:])
	if long {
		if len(list) < maxCopyHeader {
			return l, Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
		}
		if s := checkCopyHeader(list); s.Key != NoSense {
			return l, s
		}
		header, targetsLen, segmentsLen, inline = maxCopyHeader, uint64(be16(list[42:])), uint64(be16(list[44:])), uint32(be16(list[46:]))
		l.list, l.background = be32(list[20:]), list[15]&1 == 1
		// The header is there in place of a descriptor, the first.
		l.targets = append(l.targets, nil)
	} else {
		l.list = uint32(list[0])
	}
	switch {
	case list[1]&0xc0 != 0:
		return l, InvalidParameter(1, highBit(list[1]&0xc0))
	case usage == 1, usage == 3 && l.list != 0:
		return l, InvalidParameter(1, 4)
	case inline != 0:
		return l, Sense{Key: IllegalRequest, Code: ASCInlineDataLengthExceeded}
	case targetsLen+segmentsLen > maxCopyList, uint64(header)+targetsLen+segmentsLen > uint64(len(list)):
		return l, Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	rest := list[header:]
	targets, s := d.copyTargets(n, rest[:targetsLen], header)
	l.targets = append(l.targets, targets...)
	l.segments = rest[targetsLen : targetsLen+segmentsLen]
	if s.Key == NoSense {
		s = checkSegments(l.segments, header+int(targetsLen))
	}
	return l, s
}

// checkCopyHeader looks at what is fixed in the header of an EXTENDED COPY(LID4)
// parameter list (SPC-5 table 126). There is no sense data with GOOD here.
func checkCopyHeader(list []byte) Sense {
	switch {
	case list[0] != 1: // PARAMETER LIST FORMAT
		return InvalidParameter(0, 7)
	case be16(list[2:]) != targetSize: // HEADER CSCD DESCRIPTOR LIST LENGTH
		return InvalidParameter(2, 7)
	case list[15]&^1 != 0: // G_SENSE
		return InvalidParameter(15, highBit(list[15]&^1))
	case list[16] != 0xff: // HEADER CSCD DESCRIPTOR TYPE CODE
		return InvalidParameter(16, 7)
	}
	for _, r := range [][2]int{{4, 15}, {17, 20}, {24, 42}} {
		for i := r[0]; i < r[1]; i++ {
			if list[i] != 0 {
				return InvalidParameter(i, highBit(list[i]))
			}
		}
	}
	return Sense{}
}

// copyTargets returns the disks of CSCD descriptors, which lie at at in the
// parameter list, that a nexus may reach.
func (d *Disk) copyTargets(n *nexus, list []byte, at int) (targets []*Disk, s Sense) {
	bad := func(code uint16) ([]*Disk, Sense) { return nil, Sense{Key: IllegalRequest, Code: code} }
	for ; len(list) > 0; list, at = list[targetSize:], at+targetSize {
		switch {
		case list[0] != identificationTarget:
			return nil, unsupportedDescriptor(ASCUnsupportedTargetDescriptor, at)
		case len(list) < targetSize:
			return bad(ASCParameterListLengthError)
		case len(targets) == maxCopyTargets:
			return bad(ASCTooManyTargetDescriptors)
		}
		// LU ID TYPE is for descriptors other than this.
		var t *Disk
		if null := list[1]&0x20 != 0; !null && list[1]&0x1f == 0 {
			t = d.opt.Copies.find(list[4:28], n.id)
		}
		targets = append(targets, t)
	}
	return targets, Sense{}
}

// unsupportedDescriptor points at the type of a descriptor.
func unsupportedDescriptor(code uint16, at int) Sense {
	return Sense{Key: IllegalRequest, Code: code, Specific: fieldPointer(0x88, at, 7)}
}

// checkSegments looks at the segment descriptors, which lie at at in the parameter
// list.
func checkSegments(list []byte, at int) Sense {
	bad := func(code uint16) Sense { return Sense{Key: IllegalRequest, Code: code} }
	for n := 0; len(list) > 0; list, n = list[segmentSize:], n+1 {
		switch {
		case list[0] != blockToBlock:
			return unsupportedDescriptor(ASCUnsupportedSegmentDescriptor, at+n*segmentSize)
		case len(list) < segmentSize || be16(list[2:]) != segmentSize-4:
			return bad(ASCParameterListLengthError)
		case n == maxCopySegments:
			return bad(ASCTooManySegmentDescriptors)
		}
	}
	return Sense{}
}

// copySegment reads a segment descriptor (SPC-5 6.4.6.5).
func copySegment(b []byte, targets []*Disk, by *Disk) (seg segment, s Sense) {
	n := uint64(be16(b[10:]))
	disk := func(id uint16) *Disk {
		if id == askedDisk {
			return by
		}
		if int(id) < len(targets) {
			return targets[id]
		}
		return nil
	}
	seg = segment{disk(be16(b[4:])), disk(be16(b[6:])), be64(b[12:]), be64(b[20:]), 0}
	switch {
	case seg.from == nil:
		return seg, segmentField(ASCUnreachableCopyTarget, 4)
	case seg.to == nil:
		return seg, segmentField(ASCUnreachableCopyTarget, 6)
	}
	unit := seg.from.blockSize()
	if b[1]&2 != 0 { // DC: the count is in blocks of the destination
		unit = seg.to.blockSize()
	}
	seg.bytes = n * unit
	if seg.bytes%seg.from.blockSize() != 0 || seg.bytes%seg.to.blockSize() != 0 {
		return seg, segmentField(ASCCopySegmentGranularityViolation, 10)
	}
	return seg, Sense{}
}

// run copies a segment for an initiator that may read the one disk and write
// the other. by is the disk that was asked.
func (s segment) run(by *Disk, n *nexus, op *copyOperation) Sense {
	erasures := s.to.erasures.Load() // before its state
	fromBlocks, toBlocks := s.bytes/s.from.blockSize(), s.bytes/s.to.blockSize()
	switch {
	case s.from.closedTo(by, n, reads):
		return segmentField(ASCUnreachableCopyTarget, 4)
	case s.to.closedTo(by, n, writes):
		return segmentField(ASCUnreachableCopyTarget, 6)
	case zoned(s.to): // it would be written past its write pointers
		return segmentField(ASCIncorrectCopyTargetDeviceType, 6)
	}
	if sense := s.from.beyond(s.fromLBA, fromBlocks); sense.Key != NoSense {
		return segmentBeyond(sense, false, 12)
	}
	if sense := s.to.beyond(s.toLBA, toBlocks); sense.Key != NoSense {
		return segmentBeyond(sense, true, 20)
	}
	if sense := s.to.writeProtected(); sense.Key != NoSense {
		return failedCopy(sense, true)
	}
	from := s.fromLBA * s.from.blockSize()
	sense := op.move(s.to, s.toLBA, toBlocks, erasures, func(p []byte, done uint64) Sense { return s.from.copyOut(p, from+done) })
	if sense.Key != NoSense {
		return sense
	}
	return failedCopy(s.to.settle(0, s.toLBA, toBlocks), true)
}

// move writes n blocks at lba with what fill makes, until the operation is to
// stop. fill gets the place in bytes from lba on, and returns why it fails.
func (op *copyOperation) move(to *Disk, lba, n uint64, erasures uint32, fill func(p []byte, done uint64) Sense) Sense {
	buf := scratch.Get().(*[scratchSize]byte)
	defer scratch.Put(buf)
	at, size := lba*to.blockSize(), n*to.blockSize()
	for done := uint64(0); done < size; {
		if s := op.stopped(); s.Key != NoSense {
			return s
		}
		part := buf[:min(size-done, scratchSize)]
		if s := fill(part, done); s.Key != NoSense {
			return failedCopy(s, false)
		}
		if s := to.copyIn(part, at+done, erasures); s.Key != NoSense {
			return failedCopy(s, true)
		}
		op.commands.Add(2)
		done += uint64(len(part))
		op.bytes.Add(uint64(len(part)))
	}
	return Sense{}
}

// closedTo tells whether the disk isn't ready, or the access state of the port
// or reservations keep the initiator, whose nexus n is one of the disk by, from
// commands of a class.
func (d *Disk) closedTo(by *Disk, n *nexus, c class) bool {
	if d.notReady(d.state.Load()).Key != NoSense {
		return true
	}
	if d == by {
		return n.denied(c)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return accessDenied(d.accessOf(n), c).Key != NoSense || d.reserve.denies(n)&uint32(c) != 0
}

func (d *Disk) copyOut(p []byte, off uint64) Sense {
	lba := off / d.blockSize()
	n := (off+uint64(len(p))-1)/d.blockSize() + 1 - lba
	d.locks.share(lba, n)
	defer d.locks.unshare(lba, n)
	s := d.spoiled(lba, n)
	if s.Key == NoSense {
		if done, err := d.store.ReadAt(p, int64(off)); err != nil {
			s = d.readError(err, off+uint64(done))
		}
	}
	return d.count.reading.note(s)
}

func (d *Disk) copyIn(p []byte, off uint64, erasures uint32) Sense {
	lba, n := off/d.blockSize(), uint64(len(p))/d.blockSize()
	d.lockWrite(lba, n)
	defer d.unlockWrite(lba, n)
	if s := d.overtaken(erasures); s.Key != NoSense {
		return s
	}
	if done, err := d.store.WriteAt(p, int64(off)); err != nil {
		return d.writeError(err, off+uint64(done))
	}
	return d.seal(lba, n)
}
