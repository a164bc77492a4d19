package ata

import (
	"encoding/binary"
	"time"

	"lunlab/lun"
)

// Subcommands of SMART (ACS-4 7.47), in Feature.
const (
	smartReadData       = 0xd0
	smartReadThresholds = 0xd1 // obsolete, and read by everybody
	smartAutosave       = 0xd2
	smartOffline        = 0xd4
	smartReadLog        = 0xd5
	smartWriteLog       = 0xd6
	smartEnable         = 0xd8
	smartDisable        = 0xd9
	smartReturnStatus   = 0xda
)

// smartKey is what LBA 23:8 has to be, and smartBroken what it is in the answer of a
// drive that predicts its failure.
const (
	smartKey    = 0xc24f
	smartBroken = 0x2cf4
)

func smartPages(d *Drive, t *Taskfile) uint64 {
	l := d.logAt(byte(t.LBA))
	n := int(t.Count & 0xff)
	if l == nil || !l.smart || n == 0 || n > l.pages {
		return 0
	}
	return uint64(n) * wordBlock
}

func (d *Drive) smart(t *Task) failure {
	sub := byte(t.Feature)
	if t.LBA>>8&0xffff != smartKey {
		return badField
	}
	d.mu.Lock()
	on := d.settings.smart
	if sub == smartEnable || sub == smartDisable && on {
		d.settings.smart = sub == smartEnable
		d.mu.Unlock()
		return failure{}
	}
	d.mu.Unlock()
	if !on {
		return badField
	}
	switch sub {
	case smartReadData, smartReadThresholds:
		d.mu.Lock()
		b := d.smartAttributes(sub == smartReadThresholds)
		d.mu.Unlock()
		t.reply(b[:])
	case smartAutosave: // nothing is lost without it
	case smartOffline:
		return d.runSelfTest(t)
	case smartReadLog:
		return d.smartRead(t)
	case smartWriteLog:
		n := smartPages(d, &t.Taskfile)
		if n == 0 {
			return badField
		}
		return d.writeHostLog(t, byte(t.LBA), 0, int(n/wordBlock))
	case smartReturnStatus:
		t.Answer.LBA = t.LBA & 0xffffff
		d.mu.Lock()
		failing := d.failing
		d.mu.Unlock()
		if failing {
			t.Answer.LBA = t.LBA&0xff | smartBroken<<8
		}
	default:
		return badField
	}
	return failure{}
}

func (d *Drive) smartRead(t *Task) failure {
	n := smartPages(d, &t.Taskfile)
	if n == 0 {
		return badField
	}
	d.mu.Lock()
	b := d.logPages(d.logAt(byte(t.LBA)), true, 0, int(n/wordBlock))
	d.mu.Unlock()
	t.reply(b)
	return failure{}
}

// attribute is a SMART attribute: its number, its flags, the threshold of its normalized
// value, and what there is to count.
type attribute struct {
	id        byte
	flags     uint16
	threshold byte
	raw       func(d *Drive) uint64
	when      func(d *Drive) bool // nil: all drives have it
}

// Flags of attributes.
const (
	prefailure = 0x01
	online     = 0x02
	events     = 0x10
	kept       = 0x20
)

func turns(d *Drive) bool { return d.opt.turns() }

// attributes are those that hosts know, as far as there is something to count.
var attributes = []attribute{
	{id: 4, flags: online | events | kept, raw: func(d *Drive) uint64 { return d.count.starts.Load() }, when: turns},
	{id: 5, flags: prefailure | online | events | kept, threshold: 10, raw: func(*Drive) uint64 { return 0 }},
	{id: 9, flags: online | events | kept, raw: func(d *Drive) uint64 { return uint64(d.hours()) }},
	{id: 12, flags: online | events | kept, raw: func(d *Drive) uint64 { return d.count.powerCycles.Load() }},
	{id: 187, flags: online | events | kept, raw: func(d *Drive) uint64 { return d.count.uncorrectable.Load() }},
	{id: 193, flags: online | events | kept, raw: func(d *Drive) uint64 { return d.count.stops.Load() }, when: turns},
	{id: 197, flags: online | events | kept, raw: func(d *Drive) uint64 { return d.bad.Blocks() }},
	{id: 199, flags: online | events | kept, raw: func(*Drive) uint64 { return 0 }},
	{id: 241, flags: online | events | kept, raw: func(d *Drive) uint64 { return d.count.blocksWritten.Load() }},
	{id: 242, flags: online | events | kept, raw: func(d *Drive) uint64 { return d.count.blocksRead.Load() }},
}

// normal is the normalized value of every attribute: none gets worse by counting. A drive
// that predicts its failure has one that is at its threshold.
const normal = 100

// PredictFailure has SMART predict that the drive fails, or no longer.
func (d *Drive) PredictFailure(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failing = on
}

// smartAttributes is the answer of SMART READ DATA, or that of READ THRESHOLDS. mu is held.
func (d *Drive) smartAttributes(thresholds bool) (b [wordBlock]byte) {
	b[0] = 0x10 // revision
	at := 2
	for _, a := range attributes {
		if a.when != nil && !a.when(d) {
			continue
		}
		b[at] = a.id
		if thresholds {
			b[at+1] = a.threshold
		} else {
			binary.LittleEndian.PutUint16(b[at+1:], a.flags)
			value := byte(normal)
			if d.failing && a.flags&prefailure != 0 {
				value = a.threshold
			}
			b[at+3], b[at+4] = value, value
			var raw [8]byte
			binary.LittleEndian.PutUint64(raw[:], a.raw(d))
			copy(b[at+5:at+11], raw[:])
		}
		at += 12
	}
	if !thresholds {
		minutes := int((d.opt.SelfTestTime + time.Minute - 1) / time.Minute)
		b[363] = d.selfTest.status()
		b[367] = 0x11 // EXECUTE OFF-LINE IMMEDIATE, self-tests
		b[368] = 0x03 // attributes are saved
		b[370] = 0x01 // error logging
		b[372] = byte(min(max(minutes/10, 1), 255))
		b[373] = byte(min(max(minutes, 1), 254))
		if minutes > 254 {
			b[373] = 0xff
			binary.LittleEndian.PutUint16(b[375:], uint16(min(minutes, 0xffff)))
		}
	}
	b[511] = checksum(b[:511])
	return b
}

// Tests of SMART EXECUTE OFF-LINE IMMEDIATE, in LBA 7:0.
const (
	testShort    = 0x01
	testExtended = 0x02
	testAbort    = 0x7f
	testCaptive  = 0x80 // added to the two above
)

// Results of a self-test, in bits 7 to 4 of its status.
const (
	testPassed     = 0x00
	testAborted    = 0x10
	testReadFailed = 0x70
	testRunning    = 0xf0
)

// selfTests is what there is to know of self-tests: those that ended, the last first, and
// the one that runs.
type selfTests struct {
	list    []testResult
	running *runningTest
}

type testResult struct {
	kind, status byte
	hours        uint16
	lba          uint64 // the first that couldn't be read
}

type runningTest struct {
	kind  byte
	began time.Time
	takes time.Duration
	stop  chan struct{}
	done  chan struct{}
}

// testsKept is how many the SMART self-test log has room for.
const testsKept = 21

// status is that of the test that runs, or of the last one.
func (s *selfTests) status() byte {
	switch {
	case s.running != nil:
		left := 1.0
		if s.running.takes > 0 {
			left = 1 - float64(time.Since(s.running.began))/float64(s.running.takes)
		}
		return testRunning | byte(min(max(left, 0), 0.9)*10)
	case len(s.list) > 0:
		return s.list[0].status
	}
	return testPassed
}

// stopSelfTest ends the self-test that runs.
func (d *Drive) stopSelfTest() {
	d.mu.Lock()
	running := d.selfTest.running
	d.selfTest.running = nil
	d.mu.Unlock()
	if running != nil {
		close(running.stop)
		<-running.done
	}
}

// runSelfTest is SMART EXECUTE OFF-LINE IMMEDIATE. A captive test is done by the command
// itself; another goes on in the background, until it is told to end.
func (d *Drive) runSelfTest(t *Task) failure {
	kind := byte(t.LBA)
	switch kind &^ testCaptive {
	case testShort, testExtended:
	case testAbort:
		if kind != testAbort {
			return badField
		}
	default:
		return badField
	}
	d.stopSelfTest()
	if kind == testAbort {
		return failure{}
	}
	test := &runningTest{kind: kind, began: time.Now(), takes: d.opt.SelfTestTime, stop: make(chan struct{}), done: make(chan struct{})}
	if kind&^testCaptive == testShort {
		test.takes /= 10
	}
	if kind&testCaptive != 0 {
		if r := d.test(test, t.down); r.status != testPassed {
			return uncorrectable(r.lba, lun.ASCUnrecoveredReadError)
		}
		return failure{}
	}
	d.mu.Lock()
	d.selfTest.running = test
	d.mu.Unlock()
	d.work.Go(func() {
		d.test(test, test.stop)
		close(test.done)
		d.save() // what is lost if that fails is a result
	})
	return failure{}
}

// test does a self-test: the medium is read, all of it for an extended one, else some.
func (d *Drive) test(test *runningTest, stop <-chan struct{}) testResult {
	r := testResult{kind: test.kind, hours: d.hours(), lba: 1<<48 - 1}
	n := d.blocks
	if test.kind&^testCaptive == testShort {
		n = min(n, shortTest/d.size)
	}
	for lba := uint64(0); lba < n && r.status == testPassed; {
		count := min(n-lba, testPiece/d.size)
		if f := d.verify(lba, count); f.failed() {
			r.status, r.lba = testReadFailed, f.lba
		}
		lba += count
		select {
		case <-stop:
			r.status = testAborted
		default:
		}
	}
	if r.status == testPassed && !d.waitUntil(test.began.Add(test.takes), stop) {
		r.status = testAborted
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.selfTest
	if s.running == test {
		s.running = nil
	}
	s.list = append([]testResult{r}, s.list[:min(len(s.list), testsKept-1)]...)
	return r
}

// shortTest is how much a short test reads, and testPiece how much a test reads between
// two looks at whether to end, in bytes.
const (
	shortTest = 64 << 20
	testPiece = 1 << 20
)

// selfTestLog is the SMART Self-Test log (ACS-4 9.24). Its index tells which of the
// entries is the last one.
func (d *Drive) selfTestLog() (b [wordBlock]byte) {
	const each = 24
	b[0] = 1
	list := d.selfTest.list
	for i, r := range list {
		x := b[2+each*(len(list)-1-i):]
		x[0], x[1] = r.kind, r.status
		binary.LittleEndian.PutUint16(x[2:], r.hours)
		x[5], x[6], x[7], x[8] = byte(r.lba), byte(r.lba>>8), byte(r.lba>>16), byte(r.lba>>24&0x0f)
	}
	b[508] = byte(len(list))
	b[511] = checksum(b[:511])
	return b
}

// selfTestLogExt is the Extended SMART Self-Test log (ACS-4 9.8), of one page.
func (d *Drive) selfTestLogExt() (b [wordBlock]byte) {
	const each, most = 26, 19
	b[0] = 1
	list := d.selfTest.list[:min(len(d.selfTest.list), most)]
	for i, r := range list {
		x := b[4+each*(len(list)-1-i):]
		x[0], x[1] = r.kind, r.status
		binary.LittleEndian.PutUint16(x[2:], r.hours)
		for k := range 6 {
			x[5+k] = byte(r.lba >> (8 * k))
		}
	}
	binary.LittleEndian.PutUint16(b[2:], uint16(len(list)))
	b[511] = checksum(b[:511])
	return b
}
