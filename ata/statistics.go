package ata

import "encoding/binary"

// statistics are the pages of the Device Statistics log (ACS-4 9.5), each a list of
// statistics from its second quadword on. nil is a page that isn't there.
var statistics = [8]func(d *Drive) []uint64{
	1: func(d *Drive) []uint64 { // general
		c := &d.count
		return []uint64{
			c.powerCycles.Load(), uint64(d.hours()),
			c.blocksWritten.Load(), c.writes.Load(), c.blocksRead.Load(), c.reads.Load(),
			unsupported, d.bad.Blocks(),
		}
	},
	3: func(d *Drive) []uint64 { // rotating media
		return []uint64{uint64(d.hours()), unsupported, d.count.stops.Load(), 0, unsupported, unsupported, d.bad.Blocks()}
	},
	4: func(d *Drive) []uint64 { // general errors
		return []uint64{d.count.uncorrectable.Load(), d.count.interrupting.Load()}
	},
	6: func(d *Drive) []uint64 { // transport
		return []uint64{d.count.resets[HardReset].Load(), unsupported, 0}
	},
	7: func(d *Drive) []uint64 { return []uint64{0} }, // solid state: nothing wears out
}

// unsupported is in the place of a statistic that there isn't.
const unsupported = ^uint64(0)

// statisticsRevision is that of each page.
const statisticsRevision = 1

// hasStatistics tells whether a drive has the page: turning media wear otherwise than
// those that don't.
func (d *Drive) hasStatistics(page int) bool {
	return statistics[page] != nil && (page != 3 || d.opt.turns()) && (page != 7 || !d.opt.turns())
}

func (d *Drive) statisticsLog(page int) (b [wordBlock]byte) {
	const supportedValid = 3 << 62
	if page > 0 && !d.hasStatistics(page) {
		return b
	}
	binary.LittleEndian.PutUint64(b[:], uint64(page)<<16|statisticsRevision)
	if page == 0 {
		pages := []byte{0}
		for p := 1; p < len(statistics); p++ {
			if d.hasStatistics(p) {
				pages = append(pages, byte(p))
			}
		}
		b[8] = byte(len(pages))
		copy(b[9:], pages)
		return b
	}
	for i, v := range statistics[page](d) {
		if v != unsupported {
			v = v&(1<<48-1) | supportedValid
			if page == 7 {
				v |= 1 << 61 // normalized
			}
			binary.LittleEndian.PutUint64(b[8+8*i:], v)
		}
	}
	return b
}

// identifyPages are those of the IDENTIFY DEVICE data log (ACS-4 9.11). nil is one that
// isn't there; 0 and 1 are apart.
var identifyPages = [9]func(d *Drive, b []byte){
	2: (*Drive).capacityPage,
	3: (*Drive).capabilitiesPage,
	4: (*Drive).currentPage,
	5: (*Drive).stringsPage,
	6: (*Drive).securityPage,
	8: (*Drive).serialPage,
}

// valid is the bit that says that the field is there.
const valid = 1 << 63

func (d *Drive) identifyLog(page int) (b [wordBlock]byte) {
	if page == 1 {
		return d.identifyData()
	}
	if page > 1 && identifyPages[page] == nil {
		return b
	}
	qword(b[:], 0, uint64(page)<<16|1)
	if page > 1 {
		identifyPages[page](d, b[:])
		return b
	}
	pages := []byte{0, 1}
	for p, f := range identifyPages {
		if f != nil {
			pages = append(pages, byte(p))
		}
	}
	b[8] = byte(len(pages))
	copy(b[9:], pages)
	return b
}

// qword puts a quadword, marked as valid.
func qword(b []byte, at int, v uint64) { binary.LittleEndian.PutUint64(b[at:], valid|v) }

// set puts bits together, by their numbers.
func set(bits map[int]bool) (v uint64) {
	for bit, on := range bits {
		if on {
			v |= 1 << bit
		}
	}
	return v
}

func (d *Drive) capacityPage(b []byte) {
	o := &d.opt
	qword(b, 8, d.accessible.blocks)
	offset := uint64(1<<o.PhysicalExponent-o.LowestAligned) & (1<<o.PhysicalExponent - 1)
	sizes := set(map[int]bool{62: o.PhysicalExponent > 0, 61: d.size > wordBlock})
	qword(b, 16, sizes|uint64(o.PhysicalExponent)<<16|offset)
	qword(b, 24, d.size/2)
}

func (d *Drive) capabilitiesPage(b []byte) {
	o := &d.opt
	qword(b, 8, set(map[int]bool{
		41: true,   // ACCESSIBLE MAX ADDRESS CONFIGURATION
		39: o.Trim, // DRAT
		36: true,   // READ BUFFER DMA
		35: true,   // WRITE BUFFER DMA
		32: true,   // 28-bit commands
		31: o.Trim, // RZAT
		29: true,   // NOP
		28: true,   // READ BUFFER
		27: true,   // WRITE BUFFER
		25: true,   // read look-ahead
		24: true,   // volatile write cache
		23: true,   // SMART
		22: true,   // FLUSH CACHE EXT
		20: true,   // 48-bit addresses
		16: true,   // APM
		13: true,   // UNLOAD
		12: true,   // WRITE DMA FUA EXT
		11: true,   // general purpose logging
		8:  true,   // SMART self-test
		7:  true,   // SMART error logging
		5:  true,   // sense data reporting
		2:  true,   // READ and WRITE LOG DMA EXT
		1:  true,   // WRITE UNCORRECTABLE EXT
	}))
	qword(b, 24, uint64(o.RotationRate))
	qword(b, 32, uint64(o.FormFactor))
	if o.Trim {
		qword(b, 72, 1)
	}
	if queues(d) {
		qword(b, 136, uint64(o.QueueDepth-1))
	}
}

func (d *Drive) currentPage(b []byte) {
	s := &d.settings
	qword(b, 8, set(map[int]bool{
		13: s.writeCache, 11: s.reverting, 10: s.senseData, 7: s.lookAhead, 6: s.smart, 2: s.apm > 0,
	}))
	qword(b, 16, uint64(s.apm)<<8)
}

// stringsPage has text as IDENTIFY DEVICE has it.
func (d *Drive) stringsPage(b []byte) {
	var w words
	w.text(4, 20, d.opt.Serial)
	w.text(16, 8, d.opt.Firmware)
	w.text(24, 40, d.opt.Model)
	for i, v := range w {
		if v != 0 {
			binary.LittleEndian.PutUint16(b[2*i:], v)
		}
	}
}

func (d *Drive) securityPage(b []byte) {
	qword(b, 8, uint64(d.security.identifier))
	qword(b, 24, uint64(d.eraseWord()&0x7fff))
	qword(b, 32, uint64(d.eraseWord()&0x7fff))
	qword(b, 40, 1) // Trusted Computing
	w := d.sanitizeWord()
	qword(b, 48, set(map[int]bool{
		6: w&sanitizeACS != 0, 5: w&sanitizeAntifreeze != 0, 4: w&sanitizeBlock != 0,
		3: w&sanitizeOver != 0, 2: w&sanitizeCrypto != 0, 1: w&sanitizeSet != 0,
	}))
}

func (d *Drive) serialPage(b []byte) {
	q := queues(d)
	qword(b, 8, set(map[int]bool{
		24: q, // NCQ autosense
		23: true,
		17: q,
		14: true,
		11: q, // priority
		9:  true,
		7:  q,
		2:  true, 1: true, 0: true,
	}))
	qword(b, 16, set(map[int]bool{8: d.settings.preservation, 2: true}))
}
