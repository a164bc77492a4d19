package lun

import "slices"

// EXTENDED COPY and RECEIVE COPY RESULTS with one-byte list identifiers (LID1,
// SPC-5 6.4 and 6.20).

var copyOps = []op{
	{name: "EXTENDED COPY(LID1)", usage: "83 00 0000000000000000 ffffffff 00 00", class: writes | medium, moves: takes(10, 4), run: (*Disk).extendedCopy, seconds: 600, when: notZoned},
	{name: "RECEIVE COPY STATUS(LID1)", usage: "84 00 ff 00000000000000 ffffffff 00 00", class: writes, moves: allocates(10, 4), run: (*Disk).copyStatus, when: notZoned},
	{name: "RECEIVE COPY OPERATING PARAMETERS", usage: "84 03 00 00000000000000 ffffffff 00 00", class: writes, moves: allocates(10, 4), run: (*Disk).copyParameters, when: notZoned},
	{name: "RECEIVE COPY FAILURE DETAILS(LID1)", usage: "84 04 ff 00000000000000 ffffffff 00 00", class: writes, moves: allocates(10, 4), run: (*Disk).copyFailure, when: notZoned},
}

const (
	maxCopyTargets  = 16
	maxCopySegments = 16
	targetSize      = 32 // of an identification descriptor
	segmentSize     = 28 // of a block to block descriptor
	maxCopyList     = maxCopyTargets*targetSize + maxCopySegments*segmentSize
	maxSegment      = 1<<16 - 1 // blocks

	// heldResults is how many results are kept for RECEIVE COPY RESULTS.
	heldResults = 64

	identificationTarget = 0xe4
	blockToBlock         = 0x02
)

// copyResult is the outcome of an EXTENDED COPY, held for the one who sent it.
type copyResult struct {
	who      identity
	list     byte
	segments uint16 // processed
	bytes    uint64
	sense    Sense
}

// segment is a block to block segment descriptor, ready to be done.
type segment struct {
	from, to       *Disk
	fromLBA, toLBA uint64
	bytes          uint64
}

func copyAborted(code uint16) Sense { return Sense{Key: CopyAborted, Code: code} }

func (d *Disk) extendedCopy(n *nexus, c *Command) Sense {
	size := be32(c.CDB[10:])
	if size == 0 {
		return Sense{}
	}
	if size > 16+maxCopyList {
		return Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	list := c.Gather(uint64(size))
	if len(list) < 16 || uint32(len(list)) < size {
		return Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	c.OutLen = uint64(size)
	targets, segments, s := d.copyLists(list)
	if s.Key != NoSense {
		return s
	}
	result := copyResult{who: n.who, list: list[0]}
	for ; len(segments) > 0 && result.sense.Key == NoSense; segments = segments[segmentSize:] {
		seg, s := copySegment(segments, targets)
		if s.Key == NoSense {
			s = seg.run(d, n, c.Cancel)
		}
		if s.Key == NoSense {
			result.segments++
			result.bytes += seg.bytes
		}
		result.sense = s
	}
	if usage := list[1] >> 3 & 3; usage != 3 {
		d.hold(result)
	}
	return result.sense
}

// hold keeps a result, in place of an older one with the same name.
func (d *Disk) hold(r copyResult) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.copies = slices.DeleteFunc(d.copies, func(x copyResult) bool { return x.who == r.who && x.list == r.list })
	d.copies = slices.Insert(d.copies, 0, r)
	d.copies = d.copies[:min(len(d.copies), heldResults)]
}

// copyLists splits a parameter list into the disks of its target descriptors
// (nil for one that isn't reached) and its segment descriptors, and checks what
// can be checked before anything is copied.
func (d *Disk) copyLists(list []byte) (targets []*Disk, segments []byte, s Sense) {
	bad := func(code uint16) ([]*Disk, []byte, Sense) {
		return nil, nil, Sense{Key: IllegalRequest, Code: code}
	}
	targetsLen, segmentsLen, inline := uint64(be16(list[2:])), uint64(be32(list[8:])), be32(list[12:])
	switch {
	case list[1]&0xc0 != 0:
		return nil, nil, InvalidParameter(1, highBit(list[1]&0xc0))
	case list[1]>>3&3 == 1, list[1]>>3&3 == 3 && list[0] != 0: // LIST ID USAGE
		return nil, nil, InvalidParameter(1, 4)
	case inline != 0:
		return bad(ASCInlineDataLengthExceeded)
	case targetsLen+segmentsLen > maxCopyList, 16+targetsLen+segmentsLen > uint64(len(list)):
		return bad(ASCParameterListLengthError)
	}
	rest := list[16 : 16+targetsLen]
	for ; len(rest) > 0; rest = rest[targetSize:] {
		switch {
		case rest[0] != identificationTarget:
			return bad(ASCUnsupportedTargetDescriptor)
		case len(rest) < targetSize:
			return bad(ASCParameterListLengthError)
		case len(targets) == maxCopyTargets:
			return bad(ASCTooManyTargetDescriptors)
		}
		// LU ID TYPE is for descriptors other than this.
		var t *Disk
		if null := rest[1]&0x20 != 0; !null && rest[1]&0x1f == 0 {
			t = d.opt.Copies.find(rest[4:28])
		}
		targets = append(targets, t)
	}
	segments = list[16+targetsLen : 16+targetsLen+segmentsLen]
	for rest, n := segments, 0; len(rest) > 0; rest, n = rest[segmentSize:], n+1 {
		switch {
		case rest[0] != blockToBlock:
			return bad(ASCUnsupportedSegmentDescriptor)
		case len(rest) < segmentSize || be16(rest[2:]) != segmentSize-4:
			return bad(ASCParameterListLengthError)
		case n == maxCopySegments:
			return bad(ASCTooManySegmentDescriptors)
		}
	}
	return targets, segments, Sense{}
}

// copySegment reads a segment descriptor (SPC-5 6.4.6.5).
func copySegment(b []byte, targets []*Disk) (seg segment, s Sense) {
	from, to, n := int(be16(b[4:])), int(be16(b[6:])), uint64(be16(b[10:]))
	if from >= len(targets) || to >= len(targets) || targets[from] == nil || targets[to] == nil {
		return seg, copyAborted(ASCUnreachableCopyTarget)
	}
	seg = segment{targets[from], targets[to], be64(b[12:]), be64(b[20:]), 0}
	unit := seg.from.blockSize()
	if b[1]&2 != 0 { // DC: the count is in blocks of the destination
		unit = seg.to.blockSize()
	}
	seg.bytes = n * unit
	if seg.bytes%seg.from.blockSize() != 0 || seg.bytes%seg.to.blockSize() != 0 {
		return seg, copyAborted(ASCCopySegmentGranularityViolation)
	}
	return seg, Sense{}
}

// run copies a segment for an initiator that may read the one disk and write
// the other. by is the disk that was asked.
func (s segment) run(by *Disk, n *nexus, cancel <-chan struct{}) Sense {
	erasures := s.to.erasures.Load() // before its state
	fromBlocks, toBlocks := s.bytes/s.from.blockSize(), s.bytes/s.to.blockSize()
	switch {
	case s.from.closedTo(by, n, reads), s.to.closedTo(by, n, writes):
		return copyAborted(ASCUnreachableCopyTarget)
	case zoned(s.to): // it would be written past its write pointers
		return copyAborted(ASCIncorrectCopyTargetDeviceType)
	case s.from.beyond(s.fromLBA, fromBlocks).Key != NoSense, s.to.beyond(s.toLBA, toBlocks).Key != NoSense,
		s.to.writeProtected().Key != NoSense:
		return copyAborted(ASCNone)
	}
	buf := scratch.Get().(*[scratchSize]byte)
	defer scratch.Put(buf)
	for done := uint64(0); done < s.bytes; {
		select {
		case <-cancel:
			return Sense{Key: AbortedCommand}
		default:
		}
		part := buf[:min(s.bytes-done, scratchSize)]
		if !s.from.copyOut(part, s.fromLBA*s.from.blockSize()+done) || !s.to.copyIn(part, s.toLBA*s.to.blockSize()+done, erasures) {
			return copyAborted(ASCNone)
		}
		done += uint64(len(part))
	}
	return s.to.settle(0, s.toLBA, toBlocks)
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

func (d *Disk) copyOut(p []byte, off uint64) bool {
	lba, n := off/d.blockSize(), uint64(len(p))/d.blockSize()
	d.locks.share(lba, n)
	defer d.locks.unshare(lba, n)
	if d.spoiled(lba, n).Key != NoSense {
		return false
	}
	if _, err := d.store.ReadAt(p, int64(off)); err != nil {
		d.readError(err, off)
		return false
	}
	return true
}

func (d *Disk) copyIn(p []byte, off uint64, erasures uint32) bool {
	lba, n := off/d.blockSize(), uint64(len(p))/d.blockSize()
	d.lockWrite(lba, n)
	defer d.unlockWrite(lba, n)
	if d.overtaken(erasures).Key != NoSense {
		return false
	}
	if _, err := d.store.WriteAt(p, int64(off)); err != nil {
		d.writeError(err, off)
		return false
	}
	return d.seal(lba, n).Key == NoSense
}

// result finds what is held under the list identifier of a CDB.
func (d *Disk) result(n *nexus, c *Command) (r copyResult, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.copies {
		if r.who == n.who && r.list == c.CDB[2] {
			return r, true
		}
	}
	return r, false
}

// copyStatus is SPC-5 6.24. A copy is done before its own status comes, so none
// is ever in progress here.
func (d *Disk) copyStatus(n *nexus, c *Command) Sense {
	r, ok := d.result(n, c)
	if !ok {
		return InvalidField(2, 7)
	}
	b := make([]byte, 12)
	put32(b, uint32(len(b)-4))
	b[4] = 1 // completed without errors
	if r.sense.Key != NoSense {
		b[4] = 2
	}
	put16(b[5:], r.segments)
	// TRANSFER COUNT, in kibibytes (1) where bytes (0) would overflow.
	count := r.bytes
	if count > 1<<32-1 {
		b[7], count = 1, count>>10
	}
	put32(b[8:], uint32(count))
	c.Reply(b, uint64(be32(c.CDB[10:])))
	return Sense{}
}

// copyFailure is SPC-5 6.21: why a copy failed, nothing if it didn't.
func (d *Disk) copyFailure(n *nexus, c *Command) Sense {
	r, ok := d.result(n, c)
	if !ok || r.sense.Key == NoSense {
		return InvalidField(2, 7)
	}
	b := make([]byte, 60, 80)
	b = r.sense.AppendFixed(b)
	put32(b, uint32(len(b)-4))
	b[56] = byte(CheckCondition)
	put16(b[58:], uint16(len(b)-60))
	c.Reply(b, uint64(be32(c.CDB[10:])))
	return Sense{}
}

// copyParameters is SPC-5 6.22.
func (d *Disk) copyParameters(_ *nexus, c *Command) Sense {
	b := make([]byte, 46)
	put32(b, uint32(len(b)-4))
	put16(b[8:], maxCopyTargets)
	put16(b[10:], maxCopySegments)
	put32(b[12:], maxCopyList)
	put32(b[16:], uint32(maxSegment*d.blockSize()))
	put16(b[34:], heldResults) // total concurrent copies
	b[36] = heldResults
	b[37] = 9 // data segment granularity: 512 bytes
	b[43] = 2 // descriptor types that are implemented
	b[44], b[45] = blockToBlock, identificationTarget
	c.Reply(b, uint64(be32(c.CDB[10:])))
	return Sense{}
}

// thirdPartyCopy is the VPD page (SPC-5 7.7.17).
func (d *Disk) thirdPartyCopy() []byte {
	var b []byte
	add := func(kind uint16, body []byte) {
		for len(body)%4 != 0 {
			body = append(body, 0)
		}
		b = append(b, byte(kind>>8), byte(kind), byte(len(body)>>8), byte(len(body)))
		b = append(b, body...)
	}
	add(0x0001, []byte{8, 0x83, 1, 0x00, 0x84, 3, 0x00, 0x03, 0x04}) // supported commands
	parameters := make([]byte, 28)
	put16(parameters[4:], maxCopyTargets)
	put16(parameters[6:], maxCopySegments)
	put32(parameters[8:], maxCopyList)
	add(0x0004, parameters)
	add(0x0008, []byte{2, blockToBlock, identificationTarget}) // supported descriptors
	add(0x000c, []byte{0, 0})                                  // supported CSCD identifiers
	general := make([]byte, 32)
	put32(general, heldResults)
	put32(general[4:], heldResults)
	put32(general[8:], uint32(maxSegment*d.blockSize()))
	general[12] = 9
	add(0x8001, general)
	return b
}
