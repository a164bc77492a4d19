package lun

import (
	"fmt"
	"slices"
)

var primaryOps = []op{
	{name: "TEST UNIT READY", usage: "00 00 00 00 00 00", class: medium | exclusive, run: (*Disk).testUnitReady},
	{name: "REQUEST SENSE", usage: "03 01 00 00 ff 00", class: quiet | anyAccess, moves: allocates(4, 1), run: (*Disk).requestSense},
	{name: "INQUIRY", usage: "12 01 ff ffff 00", class: quiet | anyAccess, moves: allocates(3, 2), run: (*Disk).inquiry},
	{name: "REPORT LUNS", usage: "a0 00 ff 000000 ffffffff 00 00", class: quiet | anyAccess, moves: allocates(6, 4), run: (*Disk).reportLUNs},
}

// Claims of the standard INQUIRY data, as version descriptors (SPC-5 6.6.2):
// SAM-5, SPC-4 and -5, SBC-3 and -4. What the nexus speaks comes behind them, and
// ZBC-2 if the disk is zoned.
var versions = []uint16{0x00a0, 0x0460, 0x05c0, 0x04c0, 0x0600}

const zbc2 = 0x0660

// transportVersion gives the version descriptor of a TransportID's protocol.
var transportVersion = map[byte]uint16{
	0x0: 0x0a40, // FCP-4
	0x5: 0x0960, // iSCSI
	0x6: 0x0c60, // SAS-3
}

// protocol is the PROTOCOL IDENTIFIER of the nexus (SPC-5 7.6.1), 0Fh if its
// transport has none.
func (n *nexus) protocol() byte {
	if len(n.id.Initiator) == 0 {
		return protocolNone
	}
	return n.id.Initiator[0] & 0x0f
}

func (d *Disk) inquiry(n *nexus, c *Command) Sense {
	page, allocation := c.CDB[2], uint64(be16(c.CDB[3:]))
	if c.CDB[1]&1 == 1 {
		body, ok := d.vpd(n, page)
		if !ok {
			return InvalidField(2, 7)
		}
		b := append(make([]byte, 4, 4+len(body)), body...)
		b[0], b[1] = d.deviceType(), page
		put16(b[2:], uint16(len(body)))
		c.Reply(b, allocation)
		return Sense{}
	}
	if page != 0 {
		return InvalidField(2, 7)
	}
	var b [96]byte
	b[0] = d.deviceType()
	if d.opt.Removable {
		b[1] = 0x80
	}
	b[2] = 0x06 // SPC-4, what initiators know to ask for
	b[3] = 0x12 // HISUP, response data format 2
	if d.normalACA() {
		b[3] |= 0x20
	}
	b[4] = byte(len(b) - 5)
	if notZoned(d) {
		b[5] = 0x08 // 3PC
	}
	if d.protectable() {
		b[5] |= 0x01 // PROTECT
	}
	if asymmetric(d) {
		b[5] |= 0x10 // TPGS: implicit
	}
	if explicit(d) {
		b[5] |= 0x20
	}
	b[7] = 0x02 // CMDQUE
	pad(b[8:16], d.opt.Vendor)
	pad(b[16:32], d.opt.Product)
	pad(b[32:36], d.Settings().Revision)
	claims := append(make([]uint16, 0, 8), versions...)
	if v, ok := transportVersion[n.protocol()]; ok {
		claims = append(claims, v)
	}
	if zoned(d) {
		claims = append(claims, zbc2)
	}
	for i, v := range claims {
		put16(b[58+2*i:], v)
	}
	c.Reply(b[:], allocation)
	return Sense{}
}

// deviceType is the PERIPHERAL DEVICE TYPE.
func (d *Disk) deviceType() byte {
	if hostManaged(d) {
		return 0x14 // host-managed zoned block device
	}
	return 0
}

// pad copies s and fills the rest with spaces.
func pad(b []byte, s string) {
	for i := copy(b, s); i < len(b); i++ {
		b[i] = ' '
	}
}

// reportLUNs answers for a unit that is alone: LUN 0 is all there is. A target
// with several answers in its place.
func (d *Disk) reportLUNs(n *nexus, c *Command) Sense {
	allocation := uint64(be32(c.CDB[6:]))
	if allocation < 16 {
		return InvalidField(6, 7)
	}
	var b [16]byte
	switch c.CDB[2] {
	case 0x00, 0x02, 0x11: // those that are addressed simply; all; those of no conglomerate
		put32(b[:], 8)
		c.Reply(b[:], allocation)
	case 0x01, 0x10, 0x12: // well-known ones; administrative ones, and what is subsidiary to one
		c.Reply(b[:8], allocation)
	default:
		return InvalidField(2, 7)
	}
	d.lunsReported(n)
	return Sense{}
}

// vpdPages lists the vital product data pages that a disk has.
func (d *Disk) vpdPages() []byte {
	pages := []byte{0x00, 0x80, 0x83, 0x86, 0x8a}
	if zoned(d) {
		return append(pages, 0xb0, 0xb1, 0xb2, 0xb6, 0xb7)
	}
	return append(pages, 0x8f, 0xb0, 0xb1, 0xb2, 0xb7)
}

// vpd returns a vital product data page after its header.
func (d *Disk) vpd(n *nexus, page byte) ([]byte, bool) {
	if !slices.Contains(d.vpdPages(), page) {
		return nil, false
	}
	switch page {
	case 0x00:
		return d.vpdPages(), true
	case 0x80:
		return []byte(d.opt.Serial), true
	case 0x83:
		return d.designators(n), true
	case 0x86:
		return d.extendedInquiry(), true
	case 0x8a:
		return powerConditions(), true
	case 0x8f:
		return d.thirdPartyCopy(), true
	case 0xb0:
		return d.blockLimits(), true
	case 0xb1:
		return d.characteristics(), true
	case 0xb2:
		return d.provisioning(), true
	case 0xb7:
		return d.limitsExtension(), true
	case 0xb6:
		return d.zonedCharacteristics(), true
	}
	return nil, false
}

// designators is the device identification page (SPC-5 7.7.6).
func (d *Disk) designators(n *nexus) []byte {
	b := d.unitDesignators()
	add := func(kind byte, id uint16) {
		codeSet := byte(1)
		if p := n.protocol(); p != 0x0f {
			codeSet, kind = codeSet|p<<4, kind|0x80 // PIV
		}
		b = append(b, codeSet, kind, 0, 4, 0, 0, byte(id>>8), byte(id))
	}
	if n.who.port != 0 {
		add(0x14, n.who.port) // relative target port identifier
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if g := d.groupOf(n.who.port); g != nil {
		add(0x15, g.ID)
	}
	return b
}

// unitDesignators are those that name the logical unit.
func (d *Disk) unitDesignators() []byte {
	b := append([]byte{1, 3, 0, byte(len(d.opt.NAA))}, d.opt.NAA...)
	if len(d.opt.EUI) > 0 {
		b = append(append(b, 1, 2, 0, byte(len(d.opt.EUI))), d.opt.EUI...)
	}
	t10 := make([]byte, 8)
	pad(t10, d.opt.Vendor)
	t10 = fmt.Appendf(t10, "%s%s", d.opt.Product, d.opt.Serial)
	return append(append(b, 2, 1, 0, byte(len(t10))), t10...)
}

// extendedInquiry is SPC-5 7.7.7.
func (d *Disk) extendedInquiry() []byte {
	b := make([]byte, 60)
	if d.protectable() {
		b[0] = 0x3f // types 1, 2 and 3; GRD_CHK, APP_CHK, REF_CHK
	}
	b[1] = 0x17 // GROUP_SUP, HEADSUP, ORDSUP, SIMPSUP
	b[2] = 0x01 // V_SUP
	b[3] = 0x01 // LUICLR
	return b
}

// blockLimits is SBC-4 6.6.4.
func (d *Disk) blockLimits() []byte {
	b := make([]byte, 60)
	b[1] = maxCompare
	put64(b[32:], maxSame)
	put16(b[2:], 1<<d.geometry().exponent)
	put32(b[4:], d.geometry().maxTransfer)
	put32(b[8:], min(d.geometry().maxTransfer, uint32(1<<20/d.blockSize())))
	if unmapsBy(ByUnmap)(d) {
		put32(b[16:], maxUnmap)
		put32(b[20:], maxUnmapDescriptors)
	}
	if d.sparse != nil {
		put32(b[24:], 1<<d.geometry().exponent)
		put32(b[28:], 1<<31|uint32(d.geometry().aligned)) // UGAVALID
	}
	if atomicWrites(d) {
		put32(b[40:], uint32(d.maxAtomic()))
		if unit := uint32(d.atomicUnit()); unit > 1 {
			put32(b[44:], unit) // alignment
			put32(b[48:], unit) // granularity
		}
	}
	return b
}

// characteristics is SBC-4 6.6.2.
func (d *Disk) characteristics() []byte {
	b := make([]byte, 60)
	put16(b, d.opt.RotationRate)
	b[3] = 0x50 | d.opt.FormFactor // WABEREQ, WACEREQ: what was erased can be read
	b[4] = 0x01                    // VBULS: an unmapped block verifies as zeros
	if zoned(d) && d.zones.aware {
		b[4] |= 0x10 // ZONED: host-aware
	}
	return b
}

// provisioning is SBC-4 6.6.7.
func (d *Disk) provisioning() []byte {
	b := make([]byte, 4)
	if d.sparse != nil {
		if pooled(d) {
			b[0] = d.thresholdExponent()
		}
		b[1] = 0x02 // ANC_SUP
		if !d.opt.Unzeroed {
			b[1] |= 0x04 // LBPRZ 001b
		}
		for u, bit := range map[Unmapping]byte{ByUnmap: 0x80, ByWriteSame16: 0x40, ByWriteSame10: 0x20} {
			if d.opt.UnmapBy&u != 0 {
				b[1] |= bit
			}
		}
		b[2] = 2 // thin
	} else {
		b[2] = 0 // full, or not reported
	}
	return b
}
