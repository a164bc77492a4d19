package sat

import (
	"fmt"
	"strings"

	"lunlab/ata"
	"lunlab/lun"
)

// versions are claims of the standard INQUIRY data (SPC-5 6.6.2): SAM-5, SPC-4, SBC-3.
var versions = []uint16{0x00a0, 0x0460, 0x04c0}

// vendor is the T10 VENDOR IDENTIFICATION of every drive behind a translation
// (SAT-5 8.1.2).
const vendor = "ATA     "

func (u *Unit) inquiry(_ *nexus, c *lun.Command) lun.Sense {
	page, allocation := c.CDB[2], uint64(be16(c.CDB[3:]))
	id := u.id.Load()
	if c.CDB[1]&1 == 1 {
		body, s := u.vpd(c, id, page)
		if s.Key != lun.NoSense {
			return s
		}
		b := append(make([]byte, 4, 4+len(body)), body...)
		b[1] = page
		put16(b[2:], uint16(len(body)))
		c.Reply(b, allocation)
		return lun.Sense{}
	}
	if page != 0 {
		return lun.InvalidField(2, 7)
	}
	var b [96]byte
	b[2] = 0x06 // SPC-4
	b[3] = 0x02
	b[4] = byte(len(b) - 5)
	b[7] = 0x02 // CMDQUE
	copy(b[8:], vendor)
	copy(b[16:32], id.model)
	copy(b[32:36], id.revision())
	for i, v := range versions {
		put16(b[58+2*i:], v)
	}
	c.Reply(b[:], allocation)
	return lun.Sense{}
}

// revision is the last half of the firmware revision, unless that is empty.
func (id *identity) revision() string {
	if r := id.firmware[4:]; strings.TrimSpace(r) != "" {
		return r
	}
	return id.firmware[:4]
}

// vpdPages lists the vital product data pages.
var vpdPages = []byte{0x00, 0x80, 0x83, 0x89, 0xb0, 0xb1, 0xb2}

// vpd returns a vital product data page after its header.
func (u *Unit) vpd(c *lun.Command, id *identity, page byte) ([]byte, lun.Sense) {
	switch page {
	case 0x00:
		return vpdPages, lun.Sense{}
	case 0x80:
		return []byte(id.serial), lun.Sense{}
	case 0x83:
		return id.designators(), lun.Sense{}
	case 0x89:
		return u.ataInformation(c)
	case 0xb0:
		return id.blockLimits(), lun.Sense{}
	case 0xb1:
		b := make([]byte, 60)
		put16(b, id.rotation)
		b[3] = id.formFactor
		if sanitizes(0x8000)(id) {
			b[3] |= 0x40 // WABEREQ: what was erased can be read
		}
		return b, lun.Sense{}
	case 0xb2:
		b := make([]byte, 4)
		if id.zeroed {
			b[1] = 0x80 | 0x40 | 0x04 // LBPU, LBPWS, LBPRZ
			b[2] = 2                  // thin
		}
		return b, lun.Sense{}
	}
	return nil, lun.InvalidField(2, 7)
}

// designators is the device identification page (SAT-5 10.3.4).
func (id *identity) designators() (b []byte) {
	if id.wwn != 0 {
		b = append(b, 1, 3, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0)
		put64(b[4:], id.wwn)
	}
	t10 := vendor + id.model + id.serial
	return append(append(b, 2, 1, 0, byte(len(t10))), t10...)
}

// ataInformation is the ATA Information page (SAT-5 10.3.5), with IDENTIFY DEVICE data as it is
// now.
func (u *Unit) ataInformation(c *lun.Command) ([]byte, lun.Sense) {
	b := make([]byte, 568)
	if s := u.fetch(c, ata.Taskfile{Command: identifyDevice}, b[56:]); s.Key != lun.NoSense {
		return nil, s
	}
	copy(b[4:], fmt.Sprintf("%-8s%-16s%-4s", "LUNLAB", "sat", "0001"))
	// The signature, as a Register - Device to Host FIS has it.
	copy(b[32:], []byte{0x34, 0x00, 0x50, 0x01, 0x01, 0, 0, 0, 0, 0, 0, 0, 0x01})
	b[52] = identifyDevice
	return b, lun.Sense{}
}

// blockLimits is SBC-4 6.6.4.
func (id *identity) blockLimits() []byte {
	b := make([]byte, 60)
	put16(b[2:], 1<<id.exponent)
	put32(b[4:], uint32(id.mostBlocks()))
	put32(b[8:], uint32(1<<20/id.size))
	if id.zeroed {
		put32(b[16:], maxUnmap)
		put32(b[20:], maxUnmapDescriptors)
		put32(b[24:], 1<<id.exponent)
		put32(b[28:], 1<<31|uint32(id.aligned))
	}
	put64(b[32:], maxSame)
	return b
}

func readCapacity10Length(*Unit, []byte) (out, in uint64) { return 0, 8 }

func (u *Unit) readCapacity10(_ *nexus, c *lun.Command) lun.Sense {
	id := u.id.Load()
	var b [8]byte
	put32(b[:], uint32(min(id.blocks-1, 1<<32-1)))
	put32(b[4:], uint32(id.size))
	c.Reply(b[:], uint64(len(b)))
	return lun.Sense{}
}

func (u *Unit) readCapacity16(_ *nexus, c *lun.Command) lun.Sense {
	id := u.id.Load()
	var b [32]byte
	put64(b[:], id.blocks-1)
	put32(b[8:], uint32(id.size))
	b[13] = id.exponent
	put16(b[14:], id.aligned)
	if id.zeroed {
		b[14] |= 0xc0 // LBPME, LBPRZ
	}
	c.Reply(b[:], uint64(be32(c.CDB[10:])))
	return lun.Sense{}
}
