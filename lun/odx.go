package lun

import (
	"cmp"
	"slices"
)

// POPULATE TOKEN and WRITE USING TOKEN (SBC-4 4.28), which Windows calls ODX.

var odxOps = []op{
	{name: "POPULATE TOKEN", usage: "83 10 00000000 ffffffff ffffffff 3f 00", class: reads | medium, moves: takes(10, 4), run: (*Disk).populateToken, when: notZoned},
	{name: "WRITE USING TOKEN", usage: "83 11 00000000 ffffffff ffffffff 3f 00", class: writes | medium, moves: takes(10, 4), run: (*Disk).writeUsingToken, seconds: 600, when: notZoned},
	{name: "RECEIVE ROD TOKEN INFORMATION", usage: "84 07 ffffffff 00000000 ffffffff 00 00", class: writes, moves: allocates(10, 4), run: (*Disk).receiveToken, when: notZoned},
}

const (
	populateHeader = 16
	useHeader      = 536
	rangeSize      = 16 // of a block device range descriptor

	// maxTokenList is more than any parameter list that means something has.
	maxTokenList = useHeader + rangeSize*(maxRODRanges+1) + rangeSize
)

// tokenParameters returns the parameter list of a POPULATE TOKEN or WRITE USING
// TOKEN with its ranges, nil without an error if there is none. least is what
// the list has to have before the ranges.
func (d *Disk) tokenParameters(c *Command, least int) (list []byte, ranges []run, s Sense) {
	if be32(c.CDB[10:]) == 0 {
		return nil, nil, Sense{}
	}
	if list, s = copyParameters(c, maxTokenList); s.Key != NoSense {
		return nil, nil, s
	}
	if len(list) < least {
		return nil, nil, Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	if int(be16(list)) < least+rangeSize-2 { // the data length doesn't count itself
		return nil, nil, InvalidParameter(0, 7)
	}
	size := int(be16(list[least-2:])) // BLOCK DEVICE RANGE DESCRIPTOR LENGTH
	if size < rangeSize {
		return nil, nil, InvalidParameter(least-2, 7)
	}
	// What is cut off is left out.
	count := min(size, len(list)-least) / rangeSize
	if count == 0 {
		return nil, nil, Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	if count > maxRODRanges {
		return nil, nil, Sense{Key: IllegalRequest, Code: ASCTooManySegmentDescriptors}
	}
	sum := uint64(0)
	for i := range count {
		x := list[least+i*rangeSize:]
		r := run{be64(x), uint64(be32(x[8:]))}
		if s := d.beyond(r.lba, r.n); s.Key != NoSense {
			return nil, nil, s
		}
		if sum += r.n; sum*d.blockSize() > maxRODBytes {
			return nil, nil, InvalidParameter(least+i*rangeSize+8, 7)
		}
		ranges = append(ranges, r)
	}
	if overlap(ranges) {
		return nil, nil, InvalidParameter(least, 7)
	}
	c.OutLen = uint64(be32(c.CDB[10:]))
	return list, ranges, Sense{}
}

// overlap tells whether a block is in more than one run.
func overlap(list []run) bool {
	list = slices.DeleteFunc(slices.Clone(list), func(r run) bool { return r.n == 0 })
	slices.SortFunc(list, func(a, b run) int { return cmp.Compare(a.lba, b.lba) })
	for i := 1; i < len(list); i++ {
		if list[i-1].lba+list[i-1].n > list[i].lba {
			return true
		}
	}
	return false
}

// populateToken is SBC-4 5.12. It is done when its status comes, with IMMED too.
func (d *Disk) populateToken(n *nexus, c *Command) Sense {
	list, ranges, s := d.tokenParameters(c, populateHeader)
	if list == nil {
		return s
	}
	timeout := be32(list[4:])
	switch {
	case list[2]&^3 != 0:
		return InvalidParameter(2, highBit(list[2]&^3))
	case timeout > maxRODTimeout:
		return InvalidParameter(4, 7)
	case list[2]&2 != 0 && be32(list[8:]) != rodVulnerable: // RTV
		return InvalidParameter(8, 7)
	case timeout == 0:
		timeout = defaultRODTimeout
	}
	op := &copyOperation{who: n.who, list: be32(c.CDB[6:]), named: true, action: c.CDB[1], unit: d.blockSize()}
	if s := d.begin(op, c); s.Key != NoSense {
		return s
	}
	return d.runCopy(op, func() Sense {
		r, ok := d.newROD(ranges, timeout)
		if !ok {
			return Sense{Key: IllegalRequest, Code: ASCInsufficientResourcesForRODToken}
		}
		op.bytes.Store(r.size)
		d.mu.Lock()
		op.token = r.token[:]
		d.mu.Unlock()
		// A write that found no token to end may still go on. The data is that after it.
		for _, x := range ranges {
			if x.n > 0 {
				d.locks.lock(x.lba, x.n)
				d.locks.unlock(x.lba, x.n)
			}
		}
		if s := d.overtaken(c.erasures); s.Key != NoSense {
			d.rods.cancelAll()
			return s
		}
		return Sense{}
	})
}

// writeUsingToken is SBC-4 5.59.
func (d *Disk) writeUsingToken(n *nexus, c *Command) Sense {
	list, ranges, s := d.tokenParameters(c, useHeader)
	if list == nil {
		return s
	}
	if s := d.writeProtected(); s.Key != NoSense {
		return s
	}
	if list[2]&^3 != 0 {
		return InvalidParameter(2, highBit(list[2]&^3))
	}
	r, from, s := d.useROD(list[16:][:rodTokenSize])
	if s.Key != NoSense {
		return s
	}
	release := func() {}
	if r != nil {
		remove := list[2]&2 != 0 // DEL_TKN
		release = func() { from.releaseROD(r, remove) }
		if off := be64(list[8:]); off > r.size/d.blockSize() || off*d.blockSize() >= r.size {
			release()
			return InvalidParameter(8, 7)
		}
	}
	op := &copyOperation{who: n.who, list: be32(c.CDB[6:]), named: true, action: c.CDB[1], unit: d.blockSize(), background: list[2]&1 == 1}
	if s := d.begin(op, c); s.Key != NoSense {
		release()
		return s
	}
	off, erasures := be64(list[8:]), c.erasures
	return d.runCopy(op, func() Sense {
		defer release()
		return d.writeROD(op, r, from, off*d.blockSize(), ranges, erasures)
	})
}

// writeROD writes what a token of another disk stands for, from the byte at off
// on, to ranges of blocks; a nil token is zeros.
func (d *Disk) writeROD(op *copyOperation, r *rod, from *Disk, off uint64, ranges []run, erasures uint32) Sense {
	for _, x := range ranges {
		n := x.n
		if r != nil {
			n = min(n, (max(r.size, off)-off+d.blockSize()-1)/d.blockSize())
		}
		fill := func(p []byte, done uint64) (s Sense) {
			if !r.read(from, p, off+done) {
				s = copyAborted(ASCNone)
			}
			return s
		}
		if r == nil {
			fill = func(p []byte, _ uint64) Sense { clear(p); return Sense{} }
		}
		if s := op.move(d, x.lba, n, erasures, fill); s.Copy != nil {
			return copyAborted(ASCNone) // there are no segments to tell of
		} else if s.Key != NoSense {
			return s
		}
		if n > 0 {
			if s := d.settle(0, x.lba, n); s.Key != NoSense {
				return s
			}
		}
		if n < x.n {
			count := op.bytes.Load() / d.blockSize()
			key := CopyAborted
			if count == 0 {
				key = IllegalRequest
			}
			return Sense{Key: key, Code: ASCCopyTargetUnderrun, Info: count, HasInfo: true}
		}
		off += n * d.blockSize()
	}
	return Sense{}
}

// receiveToken is SPC-5 6.26 and SBC-4 5.25. A token is kept for it until all of
// it was fetched.
func (d *Disk) receiveToken(n *nexus, c *Command) Sense {
	return d.copyReply(n, c, func(op *copyOperation, b []byte) []byte {
		var token []byte
		if op.status == copyDone {
			token = op.token
		}
		at := len(b)
		b = append(b, 0, 0, 0, 0)
		if token != nil {
			b = append(append(b, 0, 0), token...)
			put32(b[at:], uint32(len(token)+2))
		}
		if allocation := uint64(be32(c.CDB[10:])); allocation == 0 || min(allocation, c.Room()) >= uint64(len(b)) {
			op.token = nil
		}
		return b
	})
}
