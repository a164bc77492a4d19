package sat

import (
	"math/bits"

	"lunlab/ata"
	"lunlab/lun"
)

// modePage is a mode page without its header: its value, and the bits of it that MODE
// SELECT can change.
type modePage struct {
	code              byte
	value, changeable []byte
}

// Places in the pages, counted without the header.
const (
	cachingPage = 0x08
	cachingWCE  = 0  // bit 2
	cachingDRA  = 10 // bit 5
	controlPage = 0x0a
	controlBits = 0 // D_SENSE is bit 2
)

// modePages returns the pages (SAT-5 10.1), in ascending order, as the drive's features
// are now, or as they are when it is powered on.
func (u *Unit) modePages(now [512]byte, usual bool) []modePage {
	id := &identity{data: now}
	recovery := modePage{0x01, make([]byte, 10), make([]byte, 10)}
	recovery.value[0] = 0x80 // AWRE

	caching := modePage{cachingPage, make([]byte, 18), make([]byte, 18)}
	caching.changeable[cachingWCE], caching.changeable[cachingDRA] = 0x04, 0x20
	if usual || id.word(85)&0x20 != 0 {
		caching.value[cachingWCE] = 0x04
	}
	if !usual && id.word(85)&0x40 == 0 {
		caching.value[cachingDRA] = 0x20
	}

	control := modePage{controlPage, make([]byte, 10), make([]byte, 10)}
	control.changeable[controlBits] = 0x04
	if !usual && u.dsense.Load() {
		control.value[controlBits] = 0x04
	}
	control.value[1] = 0x10 // unrestricted reordering
	control.value[6], control.value[7] = 0xff, 0xff

	power := modePage{0x1a, make([]byte, 38), make([]byte, 38)}
	exceptions := modePage{0x1c, make([]byte, 10), make([]byte, 10)}
	if id.word(85)&1 == 0 {
		exceptions.value[0] = 0x08 // DEXCPT
	} else {
		exceptions.value[1] = 0x06 // on request
	}
	return []modePage{recovery, caching, control, power, exceptions}
}

// identifyNow reads IDENTIFY DEVICE data for what changes.
func (u *Unit) identifyNow(c *lun.Command) (b [512]byte, s lun.Sense) {
	s = u.fetch(c, ata.Taskfile{Command: identifyDevice}, b[:])
	return b, s
}

// modeSense is SPC-5 6.14 and 6.15.
func (u *Unit) modeSense(_ *nexus, c *lun.Command) lun.Sense {
	ten := c.CDB[0] == 0x5a
	code, sub, control := c.CDB[2]&0x3f, c.CDB[3], c.CDB[2]>>6
	if control == 3 {
		return lun.Sense{Key: lun.IllegalRequest, Code: lun.ASCSavingParametersNotSupported}
	}
	if sub != 0 && sub != 0xff {
		return lun.InvalidField(3, 7)
	}
	now, s := u.identifyNow(c)
	if s.Key != lun.NoSense {
		return s
	}
	b := make([]byte, 4, 256)
	if ten {
		b = b[:8]
	}
	if c.CDB[1]&0x08 == 0 { // DBD
		b = u.id.Load().appendDescriptor(b, ten && c.CDB[1]&0x10 != 0)
	}
	found := false
	for _, p := range u.modePages(now, control == 2) {
		if code == 0x3f || code == p.code {
			found = true
			b = append(b, p.code, byte(len(p.value)))
			if control == 1 {
				b = append(b, p.changeable...)
			} else {
				b = append(b, p.value...)
			}
		}
	}
	if !found {
		return lun.InvalidField(2, 5)
	}
	const specific = 0x10 // DPOFUA
	if ten {
		put16(b, uint16(len(b)-2))
		b[3] = specific
		c.Reply(b, uint64(be16(c.CDB[7:])))
	} else {
		b[0], b[2] = byte(len(b)-1), specific
		c.Reply(b, uint64(c.CDB[4]))
	}
	return lun.Sense{}
}

// appendDescriptor appends the block descriptor to a mode parameter header, where its
// length is the last field.
func (id *identity) appendDescriptor(b []byte, long bool) []byte {
	at := len(b)
	if long {
		b[4] = 1 // LONGLBA
		b[at-1] = 16
		b = append(b, make([]byte, 16)...)
		put64(b[at:], id.blocks)
		put32(b[at+12:], uint32(id.size))
		return b
	}
	b[at-1] = 8
	b = append(b, make([]byte, 8)...)
	put32(b[at:], uint32(min(id.blocks, 1<<32-1)))
	put32(b[at+4:], uint32(id.size)) // under 2^24
	return b
}

// modeSelect is SPC-5 6.12 and 6.13.
func (u *Unit) modeSelect(x *nexus, c *lun.Command) lun.Sense {
	size, header := uint64(c.CDB[4]), 4
	if c.CDB[0] == 0x55 {
		size, header = uint64(be16(c.CDB[7:])), 8
	}
	if size == 0 {
		return lun.Sense{}
	}
	if c.CDB[1]&0x10 == 0 { // PF
		return lun.InvalidField(1, 4)
	}
	short := lun.Sense{Key: lun.IllegalRequest, Code: lun.ASCParameterListLengthError}
	list := c.Gather(size)
	if uint64(len(list)) < size || len(list) < header {
		return short
	}
	at, s := u.checkDescriptor(list, header)
	if s.Key != lun.NoSense {
		return s
	}
	now, s := u.identifyNow(c)
	if s.Key != lun.NoSense {
		return s
	}
	changed, s := checkPages(u.modePages(now, false), list, at)
	if s.Key != lun.NoSense {
		return s
	}
	for _, p := range changed {
		if s := u.changePage(c, p); s.Key != lun.NoSense {
			return s
		}
	}
	c.OutLen = size
	if len(changed) > 0 {
		u.attend(nil, x, lun.ASCModeParametersChanged)
	}
	return lun.Sense{}
}

// checkDescriptor looks at the block descriptor, which has to say how the drive is, and
// returns where the pages begin.
func (u *Unit) checkDescriptor(list []byte, header int) (at int, s lun.Sense) {
	size, long := int(list[header-1]), false
	if header == 8 {
		size, long = int(be16(list[6:])), list[4]&1 == 1
	}
	at = header + size
	switch {
	case size == 0:
		return at, s
	case size != 8 && !long, size != 16 && long:
		return 0, lun.InvalidParameter(header-1, 7)
	case len(list) < at:
		return 0, lun.Sense{Key: lun.IllegalRequest, Code: lun.ASCParameterListLengthError}
	}
	id := u.id.Load()
	want := id.appendDescriptor(make([]byte, 8), long)[8:]
	none := true // a number of blocks of 0 is as it is
	blocks := size - 4
	if long {
		blocks = 8
	}
	for i, b := range list[header:at] {
		none = none && b == 0
		if b != want[i] && !(none && i < blocks) {
			return 0, lun.InvalidParameter(header+i, 7)
		}
	}
	return at, s
}

// checkPages reads pages and returns those that differ from what is now.
func checkPages(pages []modePage, list []byte, at int) (changed []modePage, s lun.Sense) {
	short := lun.Sense{Key: lun.IllegalRequest, Code: lun.ASCParameterListLengthError}
	for at < len(list) {
		if len(list)-at < 2 {
			return nil, short
		}
		var p *modePage
		for i := range pages {
			if pages[i].code == list[at]&0x3f && list[at]&0x40 == 0 {
				p = &pages[i]
			}
		}
		if p == nil {
			return nil, lun.InvalidParameter(at, 5)
		}
		if int(list[at+1]) != len(p.value) {
			return nil, lun.InvalidParameter(at+1, 7)
		}
		at += 2
		if len(list)-at < len(p.value) {
			return nil, short
		}
		value, differs := list[at:at+len(p.value)], false
		for i, v := range value {
			if bad := (v ^ p.value[i]) &^ p.changeable[i]; bad != 0 {
				return nil, lun.InvalidParameter(at+i, uint8(bits.Len8(bad)-1))
			}
			differs = differs || v != p.value[i]
		}
		if differs {
			changed = append(changed, modePage{p.code, value, p.changeable})
		}
		at += len(value)
	}
	return changed, lun.Sense{}
}

// changePage makes a page hold.
func (u *Unit) changePage(c *lun.Command, p modePage) lun.Sense {
	if p.code == controlPage {
		u.dsense.Store(p.value[controlBits]&0x04 != 0)
		return lun.Sense{}
	}
	set := func(on bool, enable, disable uint16) lun.Sense {
		t := ata.Taskfile{Command: setFeatures, Feature: disable}
		if on {
			t.Feature = enable
		}
		return u.simple(c, t)
	}
	s := set(p.value[cachingWCE]&0x04 != 0, 0x02, 0x82)
	if s.Key == lun.NoSense {
		s = set(p.value[cachingDRA]&0x20 == 0, 0xaa, 0x55)
	}
	return s
}

// Log pages.
const (
	selfTestPage   = 0x10
	solidStatePage = 0x11
	exceptionsPage = 0x2f
)

// logSense is SPC-5 6.8. No page has parameters that could be reset.
func (u *Unit) logSense(_ *nexus, c *lun.Command) lun.Sense {
	page, sub, pointer := c.CDB[2]&0x3f, c.CDB[3], be16(c.CDB[5:])
	if sub != 0 {
		return lun.InvalidField(3, 7)
	}
	b := []byte{page, 0, 0, 0}
	id := u.id.Load()
	smart, solid := id.smart, id.solidState
	var s lun.Sense
	switch {
	case page == 0:
		b = append(b, 0)
		for _, p := range []struct {
			page byte
			has  bool
		}{{selfTestPage, smart}, {solidStatePage, solid}, {exceptionsPage, smart}} {
			if p.has {
				b = append(b, p.page)
			}
		}
	case page == selfTestPage && smart:
		b, s = u.selfTestLog(c, b)
	case page == solidStatePage && solid:
		b, s = u.solidStateLog(c, b)
	case page == exceptionsPage && smart:
		b = u.exceptionsLog(c, b)
	default:
		return lun.InvalidField(2, 5)
	}
	if s.Key != lun.NoSense {
		return s
	}
	last := map[byte]uint16{selfTestPage: selfTests, solidStatePage: 1}[page]
	if pointer > last {
		return lun.InvalidField(5, 7)
	}
	if pointer > 1 {
		b = append(b[:4], b[4+20*(pointer-1):]...)
	}
	put16(b[2:], uint16(len(b)-4))
	c.Reply(b, uint64(be16(c.CDB[7:])))
	return lun.Sense{}
}

// selfTests is how many the self-test results page has.
const selfTests = 20

// selfTestLog appends the Self-Test Results parameters (SAT-5 10.2.4), out of the
// Extended SMART Self-Test log.
func (u *Unit) selfTestLog(c *lun.Command, b []byte) ([]byte, lun.Sense) {
	var log [512]byte
	if s := u.fetch(c, ata.Taskfile{Command: readLogExt, Count: 1, LBA: 0x07}, log[:]); s.Key != lun.NoSense {
		return nil, s
	}
	const each, most = 26, 19
	last := min(int(log[2]), most)
	for i := range selfTests {
		p := make([]byte, 20)
		put16(p, uint16(i+1))
		p[2], p[3] = 0x03, 0x10
		if i < last {
			e := log[4+each*(last-1-i):]
			fillSelfTest(p, e)
		}
		b = append(b, p...)
	}
	return b, lun.Sense{}
}

// fillSelfTest puts an entry of the ATA log into a parameter.
func fillSelfTest(p, e []byte) {
	code := map[byte]byte{1: 1, 2: 2, 0x81: 5, 0x82: 6}[e[0]]
	result := e[1] >> 4
	p[4] = code<<5 | result
	p[6], p[7] = e[3], e[2] // hours
	if result == 0 || result == 0x0f {
		put64(p[8:], 1<<64-1)
		return
	}
	lba := uint64(0)
	for i := range 6 {
		lba |= uint64(e[5+i]) << (8 * i)
	}
	if lba == 1<<48-1 {
		lba = 1<<64 - 1
	}
	put64(p[8:], lba)
	if result == 7 {
		p[16] = byte(lun.MediumError)
		put16(p[17:], lun.ASCUnrecoveredReadError)
	}
}

// Places in the Solid State Device Statistics, page 7 of the Device Statistics log.
const (
	logStatistics   = 0x04
	solidStateStats = 7
	percentageUsed  = 8
)

// solidStateLog appends the Solid State Media parameter (SAT-5 10.2.5).
func (u *Unit) solidStateLog(c *lun.Command, b []byte) ([]byte, lun.Sense) {
	var log [512]byte
	s := u.fetch(c, ata.Taskfile{Command: readLogExt, Count: 1, LBA: logStatistics | solidStateStats<<8}, log[:])
	return append(b, 0, 1, 0x03, 4, 0, 0, 0, log[percentageUsed]), s
}

// exceptionsLog appends the Informational Exceptions parameter (SAT-5 10.2.7).
func (u *Unit) exceptionsLog(c *lun.Command, b []byte) []byte {
	code := u.exception(c)
	// There is no sensor for the temperature.
	return append(b, 0, 0, 0x03, 4, byte(code>>8), byte(code), 0xff, 0)
}

// ascFailurePrediction is FAILURE PREDICTION THRESHOLD EXCEEDED.
const ascFailurePrediction = 0x5d00

// exception asks the drive whether it predicts its failure. Without SMART it doesn't.
func (u *Unit) exception(c *lun.Command) (code uint16) {
	w := u.take(c, ata.Taskfile{Command: smart, Feature: 0xda, LBA: 0xc24f00})
	defer u.put(w)
	u.do(w)
	if !w.failed() && w.Answer.LBA>>8&0xffff == 0x2cf4 {
		return ascFailurePrediction
	}
	return 0
}
