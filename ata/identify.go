package ata

import (
	"encoding/binary"
	"time"
)

// maxMultiple is the most sectors that READ and WRITE MULTIPLE move at once.
const maxMultiple = 16

// maxTrimBlocks is how many blocks of 512 bytes DATA SET MANAGEMENT takes, of 64 ranges
// each.
const maxTrimBlocks = 8

// words are IDENTIFY DEVICE data (ACS-4 7.13.6).
type words [256]uint16

// feature is something that two words tell of: whether the drive has it, and whether
// it is enabled.
type feature struct {
	has, on int // words
	bit     int
	present bool
	enabled bool
}

func (d *Drive) identify(t *Task) failure {
	d.mu.Lock()
	b := d.identifyData()
	d.mu.Unlock()
	t.reply(b[:])
	return failure{}
}

// identifyData is the data of IDENTIFY DEVICE. mu is held.
func (d *Drive) identifyData() (b [wordBlock]byte) {
	w := d.identifyWords()
	for i, v := range w[:255] {
		binary.LittleEndian.PutUint16(b[2*i:], v)
	}
	b[510] = 0xa5
	b[511] = checksum(b[:511])
	return b
}

// checksum is the byte that makes the sum of all 0.
func checksum(b []byte) (sum byte) {
	for _, x := range b {
		sum -= x
	}
	return sum
}

// identifyWords returns the words but for the last one. mu is held.
func (d *Drive) identifyWords() (w words) {
	o, s := &d.opt, &d.settings
	w[0] = 0x0040  // ATA; a bit that is obsolete, and set for what isn't removable
	w[2] = 0xc837  // needs no SET FEATURES to spin up; all of this is there
	w[48] = 0x4001 // Trusted Computing
	w[49] = 0x2f00 // standby timer as in the standard, IORDY, LBA, DMA
	w[50] = 0x4000
	w[53] = 0x0006 // words 64 to 70 and 88
	w.text(10, 20, o.Serial)
	w.text(23, 8, o.Firmware)
	w.text(27, 40, o.Model)
	w[47] = 0x8000 | maxMultiple
	w[59] = d.sanitizeWord() | uint16(s.multiple)
	if s.multiple > 0 {
		w[59] |= 0x0100
	}
	w.number(60, 2, min(d.accessible.blocks, 1<<28-1))
	w[63], w[64] = 0x0007, 0x0003
	w[88] = 0x007f
	switch kind, mode := s.transfer>>3, s.transfer&7; kind {
	case 4:
		w[63] |= 0x0100 << mode
	case 8:
		w[88] |= 0x0100 << mode
	}
	for i := 65; i <= 68; i++ {
		w[i] = 120 // cycle times in ns
	}
	w[69] = 0x0c00 // READ and WRITE BUFFER DMA
	if o.Trim {
		w[69] |= 0x4020 // DRAT, RZAT
		w[105], w[169] = maxTrimBlocks, 1
	}
	d.identifySerial(&w)
	w[80] = 0x0f00 // ATA8-ACS to ACS-4
	w[81] = 0x009c // ACS-4 as published
	w[83], w[84], w[87], w[119], w[120] = 0x4000, 0x4000, 0x4000, 0x4000, 0x4000
	w[86] = 0x8000 // words 119 and 120
	for _, f := range d.features() {
		if f.present {
			w[f.has] |= 1 << f.bit
			if f.enabled && f.on > 0 {
				w[f.on] |= 1 << f.bit
			}
		}
	}
	w[89], w[90] = d.eraseWord(), d.eraseWord()
	if s.apm > 0 {
		w[91] = uint16(s.apm)
	}
	w[92] = d.security.identifier
	w.number(100, 4, d.accessible.blocks)
	w[106] = 0x4000
	if o.PhysicalExponent > 0 {
		w[106] |= 0x2000 | uint16(o.PhysicalExponent)
		// Where the first logical sector lies in its physical one.
		w[209] = 0x4000 | (1<<o.PhysicalExponent-o.LowestAligned)&(1<<o.PhysicalExponent-1)
	}
	if d.size > wordBlock {
		w[106] |= 0x1000
		w.number(117, 2, d.size/2)
	}
	for i := range 4 {
		w[108+i] = uint16(o.WWN >> (48 - 16*i))
	}
	w[128] = d.security.word()
	w[168] = uint16(o.FormFactor)
	w[217] = o.RotationRate
	w[222] = 0x10ff // serial: SATA 1.0a to 3.2
	return w
}

// features are those that words 82 to 87 and 119 to 120 tell of. mu is held.
func (d *Drive) features() []feature {
	s := &d.settings
	return []feature{
		{82, 85, 14, true, true}, // NOP
		{82, 85, 13, true, true}, // READ BUFFER
		{82, 85, 12, true, true}, // WRITE BUFFER
		{82, 85, 6, true, s.lookAhead},
		{82, 85, 5, true, s.writeCache},
		{82, 85, 3, true, true}, // power management
		{82, 85, 1, true, d.security.enabled()},
		{82, 85, 0, true, s.smart},
		{83, 86, 13, true, true}, // FLUSH CACHE EXT
		{83, 86, 12, true, true}, // FLUSH CACHE
		{83, 86, 10, true, true}, // 48-bit addresses
		{83, 86, 3, true, s.apm > 0},
		{84, 87, 13, true, true},  // IDLE IMMEDIATE with UNLOAD
		{84, 87, 8, true, true},   // world wide name
		{84, 87, 6, true, true},   // WRITE DMA FUA EXT
		{84, 87, 5, true, true},   // general purpose logging
		{84, 87, 1, true, true},   // SMART self-test
		{84, 87, 0, true, true},   // SMART error log
		{119, 120, 8, true, true}, // ACCESSIBLE MAX ADDRESS CONFIGURATION
		{119, 120, 6, true, s.senseData},
		{119, 120, 3, true, true}, // READ and WRITE LOG DMA EXT
		{119, 120, 2, true, true}, // WRITE UNCORRECTABLE EXT
		{78, 79, 6, true, s.preservation},
		{78, 79, 7, queues(d), false}, // NCQ autosense, which has no bit that says it is enabled
	}
}

// identifySerial fills in what is about the serial interface.
func (d *Drive) identifySerial(w *words) {
	w[76] = 0x840e // READ LOG DMA EXT is as good as READ LOG EXT, phy event counters, 1.5 to 6 Gb/s
	w[77] = 3 << 1 // 6 Gb/s
	if !queues(d) {
		return
	}
	w[75] = uint16(d.opt.QueueDepth - 1)
	w[76] |= 0x1100 // priority, NCQ
	w[77] |= 0x40   // RECEIVE and maybe SEND FPDMA QUEUED
}

// eraseWord is the time that an erasure takes, in units of 2 minutes, 0 if that isn't
// known.
func (d *Drive) eraseWord() uint16 {
	units := (d.opt.EraseTime + 2*time.Minute - 1) / (2 * time.Minute)
	if units == 0 {
		return 0
	}
	return 0x8000 | uint16(min(units, 0x7fff)) // the format with 15 bits
}

// text puts n characters at a word, two in each, the first one above.
func (w *words) text(at, n int, s string) {
	for i := range n {
		c := byte(' ')
		if i < len(s) {
			c = s[i]
		}
		w[at+i/2] |= uint16(c) << (8 * (1 - i%2))
	}
}

// number puts a number into n words, the lowest first.
func (w *words) number(at, n int, v uint64) {
	for i := range n {
		w[at+i] = uint16(v >> (16 * i))
	}
}
