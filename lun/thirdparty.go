package lun

// What a disk says of the third-party copies that it does.

// copyParameters is SPC-5 6.22.
func (d *Disk) copyParameters(_ *nexus, c *Command) Sense {
	b := make([]byte, 46)
	put32(b, uint32(len(b)-4))
	b[4] = 1 // SNLID
	put16(b[8:], maxCopyTargets)
	put16(b[10:], maxCopySegments)
	put32(b[12:], maxCopyList)
	put32(b[16:], d.maxSegmentBytes())
	put16(b[34:], heldCopies) // total concurrent copies
	b[36] = heldCopies
	b[37] = 9 // data segment granularity: 512 bytes
	b[43] = 2 // descriptor types that are implemented
	b[44], b[45] = blockToBlock, identificationTarget
	c.Reply(b, uint64(be32(c.CDB[10:])))
	return Sense{}
}

func (d *Disk) maxSegmentBytes() uint32 { return uint32(maxSegment * d.blockSize()) }

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
	add(0x0000, d.rodLimits())
	add(0x0001, d.copyCommands())
	parameters := make([]byte, 28)
	put16(parameters[4:], maxCopyTargets)
	put16(parameters[6:], maxCopySegments)
	put32(parameters[8:], maxCopyList)
	add(0x0004, parameters)
	add(0x0008, []byte{2, blockToBlock, identificationTarget})  // supported descriptors
	add(0x000c, []byte{0, 2, askedDisk >> 8, askedDisk & 0xff}) // supported CSCD identifiers
	add(0x0106, rodFeatures())
	add(0x0108, rodTypes())
	general := make([]byte, 32)
	put32(general, heldCopies)
	put32(general[4:], heldCopies)
	put32(general[8:], d.maxSegmentBytes())
	general[12] = 9
	add(0x8001, general)
	return b
}

// copyCommands is the commands of third-party copies that the disk has, of which
// the table knows.
func (d *Disk) copyCommands() []byte {
	b := []byte{0}
	for _, code := range []byte{0x83, 0x84} {
		b = append(b, code, byte(len(d.table[code])))
		for _, e := range d.table[code] {
			b = append(b, byte(e.Action))
		}
	}
	b[0] = byte(len(b) - 1)
	return b
}

// rodLimits is the block device ROD limits descriptor (SBC-4 6.6.9.3).
func (d *Disk) rodLimits() []byte {
	b := make([]byte, 32)
	put16(b[6:], maxRODRanges)
	put32(b[8:], maxRODTimeout)
	put32(b[12:], defaultRODTimeout)
	put64(b[16:], maxRODBytes/d.blockSize())
	put64(b[24:], maxRODBytes/d.blockSize())
	return b
}

// rodFeatures is the ROD token features descriptor (SPC-5 7.7.17.8), without its
// header. Tokens of other targets aren't known.
func rodFeatures() []byte {
	b := make([]byte, 44, 44+48)
	put32(b[16-4:], rodLifetime)
	put32(b[20-4:], rodLifetime)
	put32(b[24-4:], maxRODTimeout)
	put16(b[46-4:], 48)
	block := make([]byte, 48)
	put16(block[2:], 44)
	for _, at := range []int{8, 16, 24, 32} { // most; best in all, and for each range to and from a token
		put64(block[at:], maxRODBytes)
	}
	return append(b, block...)
}

// rodTypes is the supported ROD types descriptor (SPC-5 7.7.17.9), without its
// header.
func rodTypes() []byte {
	b := make([]byte, 4)
	for _, t := range []struct {
		kind uint32
		uses byte // TOKEN_IN is 2, TOKEN_OUT 1
	}{{rodVulnerable, 3}, {rodZero, 2}} {
		desc := make([]byte, 64)
		put32(desc, t.kind)
		desc[4] = t.uses
		b = append(b, desc...)
	}
	put16(b[2:], uint16(len(b)-4))
	return b
}
