package lun

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

var logOps = []op{
	{name: "LOG SENSE", usage: "4d 00 ff ff 00 ffff ffff 00", class: standbyAccess, moves: allocates(7, 2), run: (*Disk).logSense},
	{name: "LOG SELECT", usage: "4c 02 ff ff 000000 ffff 00", class: writes | standbyAccess, moves: takes(7, 2), run: (*Disk).logSelect},
}

// counters are what the log pages tell of.
type counters struct {
	all                         traffic
	groups                      [groupCount]traffic // by GROUP NUMBER
	reading, writing, verifying errorCount
	loads, stops                atomic.Uint64
	usage                       usage
}

// errorCount is a count of the blocks that were read, written or verified, and of
// the times that it failed.
type errorCount struct{ blocks, uncorrected atomic.Uint64 }

// note counts s, which it returns, if it tells of an error.
func (e *errorCount) note(s Sense) Sense {
	if s.Key == MediumError || s.Key == HardwareError {
		e.uncorrected.Add(1)
	}
	return s
}

func (e *errorCount) reset() {
	e.blocks.Store(0)
	e.uncorrected.Store(0)
}

// groupCount is one more than the highest group that has a log page.
const groupCount = 32

// traffic is a count of commands and of blocks.
type traffic struct {
	reads, writes, blocksRead, blocksReceived atomic.Uint64
	readTime, writeTime                       atomic.Int64 // ns from a command's beginning to its end
}

// group returns the GROUP NUMBER of a READ or WRITE (SBC-4 4.22).
func group(cdb []byte) byte {
	switch cdb[0] >> 5 {
	case 1, 2, 3:
		return cdb[6] & 0x3f
	case 5:
		return cdb[10] & 0x3f
	case 4:
		return cdb[14] & 0x3f
	}
	return 0
}

// read counts a READ of n blocks.
func (c *counters) read(k *Command, n uint64) {
	k.counted = countedRead
	c.reading.blocks.Add(n)
	c.all.reads.Add(1)
	c.all.blocksRead.Add(n)
	if g := group(k.CDB); g != 0 && g < groupCount {
		c.groups[g].reads.Add(1)
		c.groups[g].blocksRead.Add(n)
	}
}

// wrote counts a command that wrote n blocks, and came with data of so many.
func (c *counters) wrote(k *Command, received, n uint64) {
	k.counted = countedWrite
	c.writing.blocks.Add(n)
	c.all.writes.Add(1)
	c.all.blocksReceived.Add(received)
	if g := group(k.CDB); g != 0 && g < groupCount {
		c.groups[g].writes.Add(1)
		c.groups[g].blocksReceived.Add(received)
	}
}

func (t *traffic) reset() {
	t.reads.Store(0)
	t.writes.Store(0)
	t.blocksRead.Store(0)
	t.blocksReceived.Store(0)
	t.readTime.Store(0)
	t.writeTime.Store(0)
}

// statisticsInterval is the unit of the times in the statistics pages.
const statisticsInterval = 50 * time.Millisecond

// intervals is a time in nanoseconds as the statistics pages have it.
func intervals(ns int64) uint64 { return uint64(ns / int64(statisticsInterval)) }

// parameter is the count as the statistics pages have it (SPC-5 7.3.9, 7.3.10).
// Nothing is weighted: the two fields for that stay 0.
func (t *traffic) parameter() []logParameter {
	v := make([]byte, 64)
	put64(v, t.reads.Load())
	put64(v[8:], t.writes.Load())
	put64(v[16:], t.blocksReceived.Load())
	put64(v[24:], t.blocksRead.Load())
	put64(v[32:], intervals(t.readTime.Load()))
	put64(v[40:], intervals(t.writeTime.Load()))
	return []logParameter{binaryList(1, v...)}
}

// logParameter is one parameter of a log page (SPC-5 7.3.2.2). control is its
// FORMAT AND LINKING: 0 for a counter that stops at its end, 1 for ASCII and 3
// for a binary list, which have no thresholds.
type logParameter struct {
	code    uint16
	control byte
	value   []byte
}

func counter(code uint16, v uint64) logParameter {
	p := logParameter{code: code, control: 0, value: make([]byte, 8)}
	put64(p.value, v)
	return p
}

func binaryList(code uint16, v ...byte) logParameter { return logParameter{code, 3, v} }

// logPage is a log page and how it is made.
type logPage struct {
	page, sub byte
	make      func(d *Disk) []logParameter
	when      func(d *Disk) bool // nil is always

	// port makes, in the place of make, a page of the port of a nexus.
	port func(n *nexus) []logParameter

	// reset starts its counts anew. nil is a page without any, or with those of the
	// device's whole life.
	reset func(d *Disk)
}

func (p logPage) of(d *Disk) bool { return p.when == nil || p.when(d) }

// logPages lists the log pages in ascending order.
var logPages = slices.Concat([]logPage{
	errorPage(0x02, func(d *Disk) *errorCount { return &d.count.writing }),
	errorPage(0x03, func(d *Disk) *errorCount { return &d.count.reading }),
	errorPage(0x05, func(d *Disk) *errorCount { return &d.count.verifying }),
	{page: 0x0c, make: (*Disk).poolLog, when: pooled},
	{page: 0x0d, make: func(*Disk) []logParameter { // temperature, reference temperature
		return []logParameter{binaryList(0, 0, noTemperature), binaryList(1, 0, noTemperature)}
	}},
	{page: 0x0e, make: (*Disk).startStopLog},
	{page: 0x10, make: (*Disk).selfTestLog},
	{page: 0x15, make: (*Disk).backgroundScanLog},
	{page: 0x18, port: (*nexus).portLog},
	{page: 0x19, make: func(d *Disk) []logParameter {
		idle := make([]byte, 8)
		put64(idle, intervals(d.count.usage.idle.Load()))
		interval := make([]byte, 8) // INTEGER x 10^-EXPONENT s
		put32(interval, 3)
		put32(interval[4:], uint32(statisticsInterval/time.Millisecond))
		return append(d.count.all.parameter(), binaryList(2, idle...), binaryList(3, interval...))
	}, reset: func(d *Disk) {
		d.count.all.reset()
		d.count.usage.idle.Store(0)
	}},
}, groupPages(), []logPage{
	{page: 0x1a, make: (*Disk).powerLog},
	{page: 0x2f, make: (*Disk).exceptionLog},
})

// groupPages are the group statistics, one page a group.
func groupPages() (pages []logPage) {
	for g := byte(1); g < groupCount; g++ {
		pages = append(pages, logPage{page: 0x19, sub: g,
			make:  func(d *Disk) []logParameter { return d.count.groups[g].parameter() },
			reset: func(d *Disk) { d.count.groups[g].reset() },
		})
	}
	return pages
}

// noTemperature is in the place of degrees Celsius where there is no sensor
// (SPC-5 7.3.24).
const noTemperature = 0xff

func errorPage(page byte, of func(*Disk) *errorCount) logPage {
	return logPage{page: page,
		make: func(d *Disk) []logParameter {
			return errorCounters(of(d).uncorrected.Load(), of(d).blocks.Load()*d.blockSize())
		},
		reset: func(d *Disk) { of(d).reset() },
	}
}

// errorCounters is an error counter page (SPC-5 7.3.8): nothing is ever
// corrected here, so that all but the bytes processed and the uncorrected are 0.
func errorCounters(uncorrected, bytes uint64) []logParameter {
	list := make([]logParameter, 0, 7)
	for code := range uint16(7) {
		v := uint64(0)
		switch code {
		case 5:
			v = bytes
		case 6:
			v = uncorrected
		}
		list = append(list, counter(code, v))
	}
	return list
}

// startStopLog is SPC-5 7.3.22: made in the first week of 2026, never accounted
// for, and counts of cycles since the disk was made. No count is too high.
func (d *Disk) startStopLog() []logParameter {
	number := func(code uint16, v uint64) logParameter {
		p := binaryList(code, 0, 0, 0, 0)
		put32(p.value, uint32(min(v, math.MaxUint32)))
		return p
	}
	return []logParameter{
		{1, 1, []byte("202601")},
		{2, 1, []byte("      ")},
		number(3, math.MaxUint32), // specified cycle count over the lifetime
		number(4, d.count.stops.Load()),
		number(5, math.MaxUint32),
		number(6, d.count.loads.Load()),
	}
}

// backgroundScanLog is SBC-4 6.4.2: nothing is scanned in the background.
func (d *Disk) backgroundScanLog() []logParameter {
	v := make([]byte, 12)
	put32(v, uint32(time.Since(d.born)/time.Minute)) // accumulated power on minutes
	return []logParameter{binaryList(0, v...)}
}

// logSense is SPC-5 6.8.
func (d *Disk) logSense(n *nexus, c *Command) Sense {
	page, sub := c.CDB[2]&0x3f, c.CDB[3]
	pointer, allocation := be16(c.CDB[5:]), uint64(be16(c.CDB[7:]))
	b := []byte{page, sub, 0, 0}
	switch {
	case page == 0 && (sub == 0 || sub == 0xff):
		b = d.appendPageList(b, sub == 0xff)
		if pointer != 0 {
			return InvalidField(5, 7)
		}
	case sub == 0xff && page == 0x3f:
		return InvalidField(3, 7)
	default:
		list, s := d.logPage(n, page, sub)
		if s.Key != NoSense {
			return s
		}
		size := len(b)
		for _, p := range list {
			if p.code >= pointer {
				b = p.append(b, c.CDB[2]>>6)
			}
		}
		if len(b) == size && pointer != 0 {
			return InvalidField(5, 7)
		}
	}
	if sub != 0 {
		b[0] |= 0x40 // SPF
	}
	put16(b[2:], uint16(len(b)-4))
	c.Reply(b, allocation)
	return Sense{}
}

func (d *Disk) logPage(n *nexus, page, sub byte) ([]logParameter, Sense) {
	s := InvalidField(2, 5)
	for _, p := range logPages {
		if p.page == page && p.of(d) {
			switch {
			case p.sub == sub && p.port != nil:
				return p.port(n), Sense{}
			case p.sub == sub:
				return p.make(d), Sense{}
			}
			s = InvalidField(3, 7)
		}
	}
	return nil, s
}

func (d *Disk) appendPageList(b []byte, subpages bool) []byte {
	if subpages {
		b = append(b, 0, 0, 0, 0xff)
	} else {
		b = append(b, 0)
	}
	for _, p := range logPages {
		if !p.of(d) {
			continue
		}
		if subpages {
			b = append(b, p.page, p.sub)
		} else if p.sub == 0 {
			b = append(b, p.page)
		}
	}
	return b
}

// append appends the parameter with the kind of value that PAGE CONTROL asks
// for: threshold, cumulative, default threshold, default cumulative. A
// threshold is never reached.
func (p logParameter) append(b []byte, control byte) []byte {
	b = append(b, byte(p.code>>8), byte(p.code), p.control, byte(len(p.value)))
	at := len(b)
	b = append(b, p.value...)
	if p.control != 0 || control == 1 {
		return b
	}
	for i := range b[at:] {
		b[at+i] = 0xff
		if control == 3 {
			b[at+i] = 0
		}
	}
	return b
}

// logSelect is SPC-5 6.7. It resets counters: those of a page, or of all its
// subpages, or of every page. No parameter can be set.
func (d *Disk) logSelect(n *nexus, c *Command) Sense {
	page, sub := c.CDB[2]&0x3f, c.CDB[3]
	if be16(c.CDB[7:]) != 0 {
		return InvalidField(7, 7)
	}
	wildcard := sub == 0xff
	var chosen []logPage
	for _, p := range logPages {
		if p.of(d) && (page == p.page && (wildcard || sub == p.sub) || page == 0 && (wildcard || sub == 0)) {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) == 0 {
		_, s := d.logPage(n, page, sub)
		return s
	}
	if c.CDB[1]&2 == 0 { // PCR
		return Sense{}
	}
	for _, p := range chosen {
		if p.reset != nil {
			p.reset(d)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.attendOthers(n, ASCLogParametersChanged)
	return Sense{}
}
