package lun

import (
	"cmp"
	"encoding/hex"
	"slices"
)

var modeOps = []op{
	{name: "MODE SENSE(6)", usage: "1a 08 ff ff ff 00", class: writes | standbyAccess, moves: allocates(4, 1), run: (*Disk).modeSense},
	{name: "MODE SENSE(10)", usage: "5a 18 ff ff 000000 ffff 00", class: writes | standbyAccess, moves: allocates(7, 2), run: (*Disk).modeSense},
	{name: "MODE SELECT(6)", usage: "15 11 0000 ff 00", class: writes | settled | standbyAccess, moves: takes(4, 1), run: remember((*Disk).modeSelect), seconds: flushing},
	{name: "MODE SELECT(10)", usage: "55 11 0000000000 ffff 00", class: writes | settled | standbyAccess, moves: takes(7, 2), run: remember((*Disk).modeSelect), seconds: flushing},
}

// modePage is a mode page without its header: what holds now, what MODE SELECT
// may change, what holds at first, and what a reset goes back to.
type modePage struct {
	code, sub                           byte
	current, changeable, initial, saved []byte

	// refuse, if not nil, says which bit of a value of changeable bits can't be.
	refuse func(v []byte) (at int, bit uint8, bad bool)
}

func newModePage(code, sub byte, initial, changeable string) *modePage {
	p := &modePage{code: code, sub: sub, initial: unhex(initial), changeable: unhex(changeable)}
	p.current = append(p.current, p.initial...)
	p.saved = append(p.saved, p.initial...)
	return p
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic("lun: mode page: " + err.Error())
	}
	return b
}

// Places in the pages, counted without the header.
const (
	cachingPage, cachingFlags = 0x08, 0 // WCE is bit 2
	controlPage               = 0x0a
	controlSense              = 0 // TST is bits 7 to 5, D_SENSE bit 2
	controlOrder              = 1 // QUEUE ALGORITHM MODIFIER is bits 7 to 4, QERR 2 and 1
	controlProtect            = 2 // SWP is bit 3
	controlTags               = 3 // ATO is bit 7, TAS bit 6
)

// newModePages returns the pages of SPC-5 7.5 and SBC-4 6.5 that the disk has,
// in ascending order.
func newModePages(d *Disk) []*modePage {
	caching := newModePage(cachingPage, 0,
		"000000000000000000000000000000000000",
		"040000000000000000000000000000000000")
	// Unrestricted reordering; TAS. TST (one bit of it), D_SENSE, QUEUE ALGORITHM
	// MODIFIER (likewise), QERR, SWP and TAS can be changed.
	control := newModePage(controlPage, 0, "00100040000000000000", "24160840000000000000")
	control.refuse = func(v []byte) (at int, bit uint8, bad bool) {
		return controlOrder, 2, v[controlOrder]&6 == 4 // QERR 10b is reserved
	}
	caching.initial[cachingFlags] = cachingInitial(d.opt.WriteThrough)
	copy(caching.current, caching.initial)
	copy(caching.saved, caching.initial)
	if d.protectable() {
		// ATO: the application tag is the initiator's, and stays so.
		for _, v := range [][]byte{control.initial, control.current, control.saved} {
			v[controlTags] |= 0x80
		}
	}
	// Read-write error recovery: AWRE, ARRE, and PER can be set.
	recovery := newModePage(recoveryPage, 0, "c0000000000000000000", "04000000000000000000")
	if pooled(d) {
		for _, v := range [][]byte{recovery.initial, recovery.current, recovery.saved, recovery.changeable} {
			v[recoveryFlags] |= 0x80 // LBPERE
		}
	}
	pages := []*modePage{
		recovery,
		// Disconnect-reconnect.
		newModePage(0x02, 0, "0000000000000000000000000000", "0000000000000000000000000000"),
		caching,
		control,
		// Control extension: SIMPLE is the initial command priority.
		newModePage(controlPage, 0x01, "00000000000000000000000000000000000000000000000000000000", "00000000000000000000000000000000000000000000000000000000"),
		newPowerPage(),
		newExceptionPage(),
	}
	if pooled(d) {
		pages = append(pages, poolPage(d.opt.SoftThreshold))
	}
	if streams(d) {
		pages = append(pages, hintsPage(d.opt.Streams))
	}
	sortPages(pages)
	return pages
}

func sortPages(pages []*modePage) {
	slices.SortFunc(pages, func(a, b *modePage) int { return cmp.Or(cmp.Compare(a.code, b.code), cmp.Compare(a.sub, b.sub)) })
}

// cachingInitial is the first byte of the caching page at first.
func cachingInitial(writeThrough bool) byte {
	if writeThrough {
		return 0
	}
	return 0x04 // WCE
}

// page returns a page of the disk's, which there has to be or may be.
func (d *Disk) page(code, sub byte) *modePage { return findPage(d.pages, code, sub) }

// pagesOf returns the pages that a nexus sees, in ascending order.
func (d *Disk) pagesOf(n *nexus) []*modePage {
	pages := append(n.portPages(), d.pages...)
	sortPages(pages)
	return pages
}

func findPage(pages []*modePage, code, sub byte) *modePage {
	for _, p := range pages {
		if p.code == code && p.sub == sub {
			return p
		}
	}
	return nil
}

// applyModes makes the current mode pages take effect. Disk.mu is held, or the
// disk isn't in use yet.
func (d *Disk) applyModes() {
	d.writeBack.Store(d.page(cachingPage, 0).current[cachingFlags]&4 != 0)
	control := d.page(controlPage, 0).current
	d.descriptorSense.Store(control[controlSense]&4 != 0)
	d.softProtect.Store(control[controlProtect]&8 != 0)
	d.tasks.SetRules(TaskRules{
		PerNexus:      control[controlSense]&0xe0 != 0,
		Restricted:    control[controlOrder]&0xf0 == 0,
		AbortedStatus: control[controlTags]&0x40 != 0,
		OnError:       ErrorRule(control[controlOrder] >> 1 & 3),
	})
	d.power.setTimers(d.page(powerPage, 0).current)
	d.watchPower()
	d.applyPool()
}

// header returns the size of the page's header.
func (p *modePage) header() int {
	if p.sub != 0 {
		return 4
	}
	return 2
}

func (p *modePage) append(b []byte, control byte) []byte {
	if p.sub == 0 {
		b = append(b, 0x80|p.code, byte(len(p.current)))
	} else {
		b = append(b, 0xc0|p.code, p.sub, byte(len(p.current)>>8), byte(len(p.current)))
	}
	return append(b, [][]byte{p.current, p.changeable, p.initial, p.saved}[control]...)
}

// modeSense is SPC-5 6.14 and 6.15.
func (d *Disk) modeSense(n *nexus, c *Command) Sense {
	pages := d.pagesOf(n)
	ten := c.CDB[0] == 0x5a
	code, sub, control := c.CDB[2]&0x3f, c.CDB[3], c.CDB[2]>>6
	if sub != 0 && sub != 0xff && findPage(pages, code, sub) == nil {
		return InvalidField(3, 7)
	}
	b := make([]byte, 4, 256)
	if ten {
		b = b[:8]
	}
	specific := byte(0x10) // DPOFUA
	if d.writeProtected().Key != NoSense {
		specific |= 0x80
	}
	if c.CDB[1]&0x08 == 0 { // DBD
		d.mu.Lock()
		g := d.described()
		d.mu.Unlock()
		long := ten && c.CDB[1]&0x10 != 0
		if long {
			b[4] = 1 // LONGLBA
			b = append(b, make([]byte, 16)...)
			put64(b[8:], g.blocks)
			put32(b[20:], uint32(g.blockSize))
			put16(b[6:], 16)
		} else {
			at := len(b)
			b = append(b, make([]byte, 8)...)
			put32(b[at:], uint32(min(g.blocks, 1<<32-1)))
			put32(b[at+4:], uint32(g.blockSize)) // under 2^24
			b[at-1] = 8
		}
	}
	found := false
	d.mu.Lock()
	for _, p := range pages {
		if !ten && len(p.current) > 128 {
			continue // there is no room for it in an answer of 255 bytes
		}
		if (code == 0x3f || code == p.code) && (sub == 0xff || sub == p.sub) {
			b = p.append(b, control)
			found = true
		}
	}
	d.mu.Unlock()
	if !found {
		return InvalidField(2, 5)
	}
	if ten {
		put16(b, uint16(len(b)-2))
		b[3] = specific
		c.Reply(b, uint64(be16(c.CDB[7:])))
	} else {
		b[0], b[2] = byte(len(b)-1), specific
		c.Reply(b, uint64(c.CDB[4]))
	}
	return Sense{}
}

// modeSelect is SPC-5 6.12 and 6.13.
func (d *Disk) modeSelect(n *nexus, c *Command) Sense {
	ten := c.CDB[0] == 0x55
	size, header := uint64(c.CDB[4]), 4
	if ten {
		size, header = uint64(be16(c.CDB[7:])), 8
	}
	if size == 0 {
		return Sense{}
	}
	if c.CDB[1]&0x10 == 0 { // PF
		return InvalidField(1, 4)
	}
	list := c.Gather(size)
	if uint64(len(list)) < size || len(list) < header {
		return Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	}
	c.OutLen = size
	descriptors, long := int(list[3]), false
	if ten {
		descriptors, long = int(be16(list[6:])), list[4]&1 == 1
	}
	x, s := parseDescriptor(list, header, descriptors, long)
	if s.Key != NoSense {
		return s
	}
	cached := d.writeBack.Load()
	if s := d.changeModes(n, list, header+descriptors, x, c.CDB[1]&1 == 1); s.Key != NoSense {
		return s
	}
	if cached && !d.writeBack.Load() {
		return d.flush()
	}
	return Sense{}
}

// changeModes puts the block descriptor, which may be nil, and the pages of a
// parameter list into effect, or nothing of it.
func (d *Disk) changeModes(n *nexus, list []byte, at int, x *descriptor, save bool) Sense {
	d.mu.Lock()
	defer d.mu.Unlock()
	changes, s := parsePages(d.pagesOf(n), list, at)
	if s.Key != NoSense {
		return s
	}
	if state := d.state.Load(); state&(formatting|sanitizing) != 0 {
		return d.notReady(state) // it has begun since the command was let in
	}
	g, s := d.asks(x)
	if s.Key != NoSense {
		return s
	}
	before := d.geometry()
	changed, tested := d.choose(g), false
	if changed && d.geometry() != before { // a block length waits for FORMAT UNIT
		d.attendOthers(n, ASCCapacityDataHasChanged)
	}
	for _, ch := range changes {
		tested = tested || ch.page.code == exceptionPage
		if string(ch.page.current) != string(ch.value) {
			changed = true
			copy(ch.page.current, ch.value)
		}
		if save {
			copy(ch.page.saved, ch.value)
		}
	}
	d.applyModes()
	if changed {
		d.attendOthers(n, ASCModeParametersChanged)
	}
	if tested {
		d.reportException()
	}
	return Sense{}
}

type modeChange struct {
	page  *modePage
	value []byte
}

// parsePages reads the pages of a parameter list and compares them with what
// may be changed. Disk.mu is held.
func parsePages(pages []*modePage, list []byte, at int) (changes []modeChange, s Sense) {
	short := Sense{Key: IllegalRequest, Code: ASCParameterListLengthError}
	for at < len(list) {
		if len(list)-at < 2 {
			return nil, short
		}
		code, sub, size, header := list[at]&0x3f, byte(0), int(list[at+1]), 2
		if list[at]&0x40 != 0 {
			if len(list)-at < 4 {
				return nil, short
			}
			sub, size, header = list[at+1], int(be16(list[at+2:])), 4
		}
		p := findPage(pages, code, sub)
		if p == nil || p.header() != header {
			return nil, InvalidParameter(at, 5)
		}
		if size != len(p.current) {
			return nil, InvalidParameter(at+header-1, 7)
		}
		if len(list)-at < header+size {
			return nil, short
		}
		value := list[at+header : at+header+size]
		for i, v := range value {
			if bad := (v ^ p.current[i]) &^ p.changeable[i]; bad != 0 {
				return nil, InvalidParameter(at+header+i, highBit(bad))
			}
		}
		if p.refuse != nil {
			if i, bit, bad := p.refuse(value); bad {
				return nil, InvalidParameter(at+header+i, bit)
			}
		}
		changes = append(changes, modeChange{p, value})
		at += header + size
	}
	return changes, Sense{}
}
