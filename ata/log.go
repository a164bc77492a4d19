package ata

import (
	"encoding/binary"
	"time"
)

const (
	readLogExt    = 0x2f
	readLogDMAExt = 0x47
)

// Log addresses (ACS-4 9.2).
const (
	logDirectory     = 0x00
	logSummary       = 0x01
	logComprehensive = 0x02
	logErrors        = 0x03
	logStatistics    = 0x04
	logSelfTest      = 0x06
	logSelfTestExt   = 0x07
	logDefects       = 0x0c
	logNCQError      = 0x10
	logPhyEvents     = 0x11
	logSendReceive   = 0x13
	logIdentify      = 0x30
	logHost          = 0x80 // to 9Fh
)

const (
	hostLogs  = 0x20
	hostPages = 16
)

// log is a log that a drive has. Which way it is read, by READ LOG EXT or SMART READ
// LOG, the standard says for each.
type log struct {
	pages      int
	gpl, smart bool

	// page makes a page. Drive.mu is held.
	page func(d *Drive, n int) [wordBlock]byte
}

// one is for a log of one page.
func one(make func(*Drive) [wordBlock]byte) func(*Drive, int) [wordBlock]byte {
	return func(d *Drive, _ int) [wordBlock]byte { return make(d) }
}

// logAt returns the log at an address, nil if there is none.
func (d *Drive) logAt(address byte) *log {
	if address >= logHost && address < logHost+hostLogs {
		return &log{hostPages, true, true, func(d *Drive, n int) (b [wordBlock]byte) {
			if l := d.hostLogs[address-logHost]; l != nil {
				b = l[n]
			}
			return b
		}}
	}
	if address >= logHost || logs[address] == nil {
		return nil
	}
	if l := logs[address]; l.when == nil || l.when(d) {
		return &l.log
	}
	return nil
}

// conditional is a log that only some drives have.
type conditional struct {
	log
	when func(*Drive) bool // nil: all
}

// logs are those that the host doesn't write. It is filled by init, since the directory
// is one of them.
var logs [logHost]*conditional

func init() {
	logs = [logHost]*conditional{
		logDirectory:     {log: log{1, true, true, nil}}, // apart: it isn't the same for both ways
		logSummary:       {log: log{1, false, true, one((*Drive).summaryLog)}},
		logComprehensive: {log: log{1, false, true, one((*Drive).summaryLog)}},
		logErrors:        {log: log{errorPages, true, false, (*Drive).errorLog}},
		logStatistics:    {log: log{len(statistics), true, true, (*Drive).statisticsLog}},
		logSelfTest:      {log: log{1, false, true, one((*Drive).selfTestLog)}},
		logSelfTestExt:   {log: log{1, true, false, one((*Drive).selfTestLogExt)}},
		logDefects:       {log: log{defectPages, true, false, (*Drive).defectLog}},
		logNCQError:      {log{1, true, false, one(func(d *Drive) [wordBlock]byte { return d.ncqError.page() })}, queues},
		logPhyEvents:     {log: log{1, true, false, one((*Drive).phyLog)}},
		logSendReceive:   {log{1, true, false, one((*Drive).sendReceiveLog)}, queues},
		logIdentify:      {log: log{len(identifyPages), true, true, (*Drive).identifyLog}},
	}
}

// directory is the Log Directory, of the logs that READ LOG EXT or SMART READ LOG
// reads.
func (d *Drive) directory(smart bool) (b [wordBlock]byte) {
	binary.LittleEndian.PutUint16(b[:], 1)
	for a := 1; a < 256; a++ {
		if l := d.logAt(byte(a)); l != nil && (smart && l.smart || !smart && l.gpl) {
			binary.LittleEndian.PutUint16(b[2*a:], uint16(l.pages))
		}
	}
	return b
}

// logExtent is the address, the first page and how many a READ or WRITE LOG names. n is
// its count.
func logExtent(t *Taskfile, n uint64) (address byte, page, count int) {
	return byte(t.LBA), int(t.LBA>>8&0xff | t.LBA>>32&0xff<<8), int(n)
}

// logOf returns the log if it has the pages.
func (d *Drive) logOf(t *Taskfile, n uint64) *log {
	address, page, count := logExtent(t, n)
	if l := d.logAt(address); l != nil && l.gpl && count > 0 && page+count <= l.pages {
		return l
	}
	return nil
}

func (d *Drive) logLength(t *Taskfile, n uint64) uint64 {
	if d.logOf(t, n) == nil {
		return 0
	}
	return n * wordBlock
}

func pagesLength(d *Drive, t *Taskfile) uint64 { return d.logLength(t, uint64(t.Count)) }

func (d *Drive) readLog(t *Task) failure  { return d.readLogPages(t, uint64(t.Count)) }
func (d *Drive) writeLog(t *Task) failure { return d.writeLogPages(t, uint64(t.Count)) }

// readLogPages is READ LOG EXT (ACS-4 7.24).
func (d *Drive) readLogPages(t *Task, n uint64) failure {
	l := d.logOf(&t.Taskfile, n)
	if l == nil {
		return badField
	}
	address, page, count := logExtent(&t.Taskfile, n)
	d.mu.Lock()
	b := d.logPages(l, false, page, count)
	if address == logPhyEvents && t.Feature&1 == 1 {
		d.count.phyResets.Store(0)
	}
	d.mu.Unlock()
	t.reply(b)
	return failure{}
}

// logPages puts pages of a log together. mu is held.
func (d *Drive) logPages(l *log, smart bool, page, count int) []byte {
	b := make([]byte, 0, count*wordBlock)
	for i := range count {
		p := [wordBlock]byte{}
		if l.page != nil {
			p = l.page(d, page+i)
		} else {
			p = d.directory(smart)
		}
		b = append(b, p[:]...)
	}
	return b
}

// writeLogPages is WRITE LOG EXT (ACS-4 7.60), which writes the logs that are the host's.
func (d *Drive) writeLogPages(t *Task, n uint64) failure {
	if d.logOf(&t.Taskfile, n) == nil {
		return badField
	}
	address, page, count := logExtent(&t.Taskfile, n)
	return d.writeHostLog(t, address, page, count)
}

func (d *Drive) writeHostLog(t *Task, address byte, page, count int) failure {
	if address < logHost {
		return badField
	}
	b, f := t.gather(uint64(count) * wordBlock)
	if f.failed() {
		return f
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	l := &d.hostLogs[address-logHost]
	if *l == nil {
		*l = new([hostPages][wordBlock]byte)
	}
	for i := range count {
		copy((*l)[page+i][:], b[i*wordBlock:])
	}
	return failure{}
}

// defectPages is how many pages the Pending Defects log has: one header in place of a
// descriptor, 32 of which make a page.
const defectPages = maxBad/32 + 1

// defectLog is the Pending Defects log (ACS-4 9.26).
func (d *Drive) defectLog(page int) (b [wordBlock]byte) {
	const each = 16
	skip, at := uint64(page*wordBlock/each), 0
	if page == 0 {
		binary.LittleEndian.PutUint32(b[:], uint32(d.bad.Blocks()))
		at = each
	} else {
		skip--
	}
	for lba := uint64(0); at < wordBlock; {
		first, n, ok := d.bad.First(lba, d.blocks-lba)
		if !ok {
			break
		}
		if skip >= n {
			skip, lba = skip-n, first+n
			continue
		}
		// Since when it is bad isn't kept: the time is that of now.
		binary.LittleEndian.PutUint32(b[at:], uint32(d.hours()))
		binary.LittleEndian.PutUint64(b[at+8:], first+skip)
		lba, skip, at = first+skip+1, 0, at+each
	}
	return b
}

// errorPages is how many pages the Extended Comprehensive SMART Error log has, of 4
// errors each.
const errorPages = 2

// errorLog is the Extended Comprehensive SMART Error log (ACS-4 9.7). The error index
// tells where the last one is; those before it are in front of it, round and round.
func (d *Drive) errorLog(page int) (b [wordBlock]byte) {
	const perPage, each = 4, 124
	r := &d.count.errors
	b[0] = 1
	if page == 0 && r.count > 0 {
		binary.LittleEndian.PutUint16(b[2:], uint16(r.kept()))
		binary.LittleEndian.PutUint16(b[500:], uint16(min(r.count, 0xffff)))
	}
	for i := range perPage {
		at := page*perPage + i
		if at >= r.kept() {
			break
		}
		r.last(r.kept() - 1 - at).extended(b[4+i*each:][:each])
	}
	b[511] = checksum(b[:511])
	return b
}

// extended puts the error in the format of 48-bit commands.
func (e *errorEntry) extended(b []byte) {
	pair := func(b []byte, lba uint64) {
		for i := range 3 {
			b[2*i], b[2*i+1] = byte(lba>>(8*i)), byte(lba>>(24+8*i))
		}
	}
	for i, h := range e.history {
		c := b[18*i:]
		c[0] = h.task.Control
		binary.LittleEndian.PutUint16(c[1:], h.task.Feature)
		binary.LittleEndian.PutUint16(c[3:], h.task.Count)
		pair(c[5:], h.task.LBA)
		c[11], c[12] = h.task.Device, h.task.Command
		binary.LittleEndian.PutUint32(c[14:], uint32(h.at/time.Millisecond))
	}
	x, r := b[90:], &e.registers
	x[1] = r.Error
	binary.LittleEndian.PutUint16(x[2:], r.Count)
	pair(x[4:], r.LBA)
	x[10], x[11] = r.Device, r.Status
	x[31] = 3 // active, with a command that was executed
	binary.LittleEndian.PutUint16(x[32:], e.hours)
}

// summaryLog is the Summary SMART Error log (ACS-4 9.22), in whose format all of
// the comprehensive one fits too.
func (d *Drive) summaryLog() (b [wordBlock]byte) {
	const each = 90
	r := &d.count.errors
	b[0], b[1] = 1, byte(r.kept())
	for i := range r.kept() {
		r.last(r.kept() - 1 - i).short(b[2+i*each:][:each])
	}
	binary.LittleEndian.PutUint16(b[452:], uint16(min(r.count, 0xffff)))
	b[511] = checksum(b[:511])
	return b
}

// short puts the error in the format of 28-bit commands.
func (e *errorEntry) short(b []byte) {
	for i, h := range e.history {
		t := &h.task
		copy(b[12*i:], []byte{t.Control, byte(t.Feature), byte(t.Count), byte(t.LBA), byte(t.LBA >> 8), byte(t.LBA >> 16), t.Device, t.Command})
		binary.LittleEndian.PutUint32(b[12*i+8:], uint32(h.at/time.Millisecond))
	}
	r := &e.registers
	copy(b[60:], []byte{0, r.Error, byte(r.Count), byte(r.LBA), byte(r.LBA >> 8), byte(r.LBA >> 16), r.Device, r.Status})
	b[87] = 3
	binary.LittleEndian.PutUint16(b[88:], e.hours)
}

// phyLog is the SATA Phy Event Counters log (SATA 3.5 13.7.4). There is no phy that
// could go wrong: COMRESETs are all that there is to count.
func (d *Drive) phyLog() (b [wordBlock]byte) {
	at := 4
	for _, id := range []uint16{0x001, 0x00a} {
		v := uint64(0)
		if id == 0x00a {
			v = d.count.phyResets.Load()
		}
		binary.LittleEndian.PutUint16(b[at:], 1<<12|id) // one word
		binary.LittleEndian.PutUint16(b[at+2:], uint16(min(v, 0xffff)))
		at += 4
	}
	b[511] = checksum(b[:511])
	return b
}
