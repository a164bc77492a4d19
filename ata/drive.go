package ata

import (
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"time"

	"lunlab/lun"
	"lunlab/lun/store"
)

// Options say what kind of drive to make. The zero value is a 512-byte drive that
// doesn't turn, with a write cache, a queue of 32 and an identity of its own.
type Options struct {
	// BlockSize is the logical sector size in bytes, 512 or 4096. 0 is 512.
	BlockSize int

	// PhysicalExponent says that 2^n logical sectors make a physical one, 0 to 15.
	// LowestAligned is the first logical sector that begins a physical one.
	PhysicalExponent uint8
	LowestAligned    uint16

	// Model, Firmware and Serial are up to 40, 8 and 20 characters of ASCII. "" is
	// "LUNLAB disk", the version, or a serial number that is made up.
	Model, Firmware, Serial string

	// WWN is the world wide name: a number of 64 bits that begins with NAA 5, or 3 for
	// one that is locally assigned. 0 derives one of those from Serial.
	WWN uint64

	// QueueDepth is how many commands can be queued, 2 to 32. 0 is 32, 1 none: a drive
	// without NCQ.
	QueueDepth int

	// Trim makes DATA SET MANAGEMENT unmap blocks, which read as zeros then. The store
	// has to be a [store.Sparse].
	Trim bool

	// WriteThrough turns the volatile write cache off at first.
	WriteThrough bool

	// RotationRate is the rotation rate per minute, 0401h to FFFEh. 0 and 1 are for a
	// medium that doesn't turn.
	RotationRate uint16

	// FormFactor is that of SBC-4 6.6.2: 1 to 5 for 5.25, 3.5, 2.5, 1.8 and less than
	// 1.8 inches. 0 is 2 for a medium that turns, and else not reported.
	FormFactor uint8

	// SpinUp is how long a medium that turns takes until it can be used after it stood
	// still. A drive with one is Blocking.
	SpinUp time.Duration

	// EraseTime is how long SANITIZE and SECURITY ERASE UNIT take at the least.
	EraseTime time.Duration

	// SelfTestTime is how long an extended self-test takes at the least; a short one
	// takes a tenth of it.
	SelfTestTime time.Duration

	// Memory is where the drive keeps what has to outlive a restart: passwords, the
	// accessible max address, what is counted, and logs. nil is nowhere.
	Memory lun.Memory
}

// Drive is an ATA device over a [store.Store], which is its medium.
//
// All methods are safe for concurrent use. A drive keeps to what SATA lets a host
// do: up to 32 queued commands by tag, or one other.
type Drive struct {
	opt      Options
	store    store.Store
	sparse   store.Sparse // nil unless it trims
	volatile bool         // the store is memory
	size     uint64       // of a logical sector, in bytes
	blocks   uint64       // native, in logical sectors
	made     time.Time

	commands  [256]*command
	smartData map[byte]*command

	bad     lun.BlockSet // can't be read
	flagged lun.BlockSet // neither, which isn't to be logged
	count   counters
	closing chan struct{}
	work    sync.WaitGroup // what goes on in the background

	saving sync.Mutex // held over Memory's calls; before mu

	mu       sync.Mutex
	quiet    sync.Cond // a task has ended; mu
	closed   bool
	running  int       // tasks that have begun and not ended
	stale    int       // those of them that were taken down
	queued   [32]*Task // by tag
	tags     uint32    // which of those there are
	current  *Task     // that isn't queued
	halted   bool      // a queued command failed, and nobody has asked yet
	resets   int       // how many are going on
	takedown chan struct{}
	ncqError ncqError
	sense    failure // of the last command, for REQUEST SENSE DATA EXT

	settings settings
	power    power
	security security
	sanitized
	selfTest selfTests
	failing  bool                                  // see PredictFailure
	hostLogs [hostLogs]*[hostPages][wordBlock]byte // nil: never written
	buffer   [wordBlock]byte
	accessible
}

// New returns a drive whose medium is s. What of s makes no whole sector is left
// unused. The drive uses s until its Close, which closes s too.
func New(s store.Store, o Options) (*Drive, error) {
	d := &Drive{store: s, volatile: !store.Blocking(s), made: time.Now(), closing: make(chan struct{})}
	d.quiet.L = &d.mu
	d.takedown = make(chan struct{})
	if err := o.complete(); err != nil {
		return nil, fmt.Errorf("ata: %w", err)
	}
	d.opt, d.size = o, uint64(o.BlockSize)
	d.blocks = min(uint64(max(s.Size(), 0))/d.size, 1<<48-1)
	d.accessible.blocks = d.blocks
	if d.blocks == 0 {
		return nil, fmt.Errorf("ata: a store of %d bytes has no room for a sector of %d", s.Size(), d.size)
	}
	if o.Trim {
		sparse, ok := s.(store.Sparse)
		if !ok {
			return nil, errors.New("ata: TRIM needs a store that can unmap")
		}
		d.sparse = sparse
	}
	all := commands()
	for i := range all {
		if c := &all[i]; c.when == nil || c.when(d) {
			d.commands[c.code] = c
		}
	}
	d.smartData = smartCommands()
	d.settings.smart, d.security.identifier = true, usualIdentifier
	if err := d.recall(); err != nil {
		return nil, fmt.Errorf("ata: %w", err)
	}
	d.powerOn()
	if d.sanitized.state == sanitizeRunning {
		d.startSanitize()
	}
	return d, nil
}

// complete checks the options, and chooses what was left to be chosen.
func (o *Options) complete() error {
	if o.BlockSize == 0 {
		o.BlockSize = 512
	}
	if o.BlockSize != 512 && o.BlockSize != 4096 {
		return fmt.Errorf("sector size %d is neither 512 nor 4096", o.BlockSize)
	}
	if o.PhysicalExponent > 15 {
		return fmt.Errorf("physical exponent %d is above 15", o.PhysicalExponent)
	}
	if o.LowestAligned >= 1<<o.PhysicalExponent {
		return fmt.Errorf("lowest aligned sector %d is not in the first physical one, of %d", o.LowestAligned, 1<<o.PhysicalExponent)
	}
	if o.Serial == "" {
		o.Serial = strings.ToUpper(rand.Text()[:16])
	}
	for _, f := range []struct {
		name  string
		value *string
		usual string
		most  int
	}{{"model", &o.Model, "LUNLAB disk", 40}, {"firmware revision", &o.Firmware, "0001", 8}, {"serial number", &o.Serial, "", 20}} {
		if *f.value == "" {
			*f.value = f.usual
		}
		if len(*f.value) > f.most {
			return fmt.Errorf("%s %q is longer than %d", f.name, *f.value, f.most)
		}
		for _, r := range *f.value {
			if r < 0x20 || r > 0x7e {
				return fmt.Errorf("%s %q has more than printable ASCII", f.name, *f.value)
			}
		}
	}
	if o.WWN == 0 {
		h := fnv.New64a()
		fmt.Fprintf(h, "%s\x00%s", o.Model, o.Serial)
		o.WWN = 3<<60 | h.Sum64()>>4
	}
	if naa := o.WWN >> 60; naa != 3 && naa != 5 {
		return fmt.Errorf("world wide name %016x begins with NAA %x, not 3 or 5", o.WWN, naa)
	}
	switch {
	case o.QueueDepth == 0:
		o.QueueDepth = 32
	case o.QueueDepth < 1 || o.QueueDepth > 32:
		return fmt.Errorf("queue depth %d is not 1 to 32", o.QueueDepth)
	}
	if o.RotationRate == 0 {
		o.RotationRate = 1
	}
	if o.RotationRate != 1 && (o.RotationRate < 0x401 || o.RotationRate == 0xffff) {
		return fmt.Errorf("rotation rate %d is neither 1 nor 1025 to 65534", o.RotationRate)
	}
	if o.FormFactor > 5 {
		return fmt.Errorf("form factor %d is above 5", o.FormFactor)
	}
	if o.FormFactor == 0 && o.turns() {
		o.FormFactor = 2
	}
	if !o.turns() {
		o.SpinUp = 0
	}
	return nil
}

func (o *Options) turns() bool { return o.RotationRate > 1 }

func queues(d *Drive) bool     { return d.opt.QueueDepth > 1 }
func trims(d *Drive) bool      { return d.opt.Trim }
func queuesTrim(d *Drive) bool { return queues(d) && trims(d) }

// Options returns the drive's options, with all that was left to be chosen.
func (d *Drive) Options() Options { return d.opt }

// Blocks returns the native capacity in logical sectors.
func (d *Drive) Blocks() uint64 { return d.blocks }

// Close ends what goes on in the background, makes what was written durable, and
// closes the store. Commands that run then, or come later, fail with device fault.
func (d *Drive) Close() error {
	d.mu.Lock()
	if !d.closed {
		d.closed = true
		close(d.closing)
	}
	d.mu.Unlock()
	d.work.Wait()
	var err error
	if f := d.save(); f.failed() {
		err = errors.New("ata: the state can't be saved")
	}
	return errors.Join(err, d.store.Sync(), d.store.Close())
}

// Blocking tells whether a task may sleep, on the store or because the drive takes
// its time.
func (d *Drive) Blocking() bool {
	return !d.volatile || d.opt.SpinUp > 0 || d.opt.EraseTime > 0 || d.opt.SelfTestTime > 0
}

// Issue gives the drive a task and returns at once. The task's Done is called when
// it has ended, be that before Issue returns. Tasks come to the drive in the order of
// the calls.
func (d *Drive) Issue(t *Task) {
	switch {
	case !d.accept(t):
	case d.Blocking():
		go func() {
			d.perform(t)
			t.done()
		}()
		return
	default:
		d.perform(t)
	}
	t.done()
}

func (t *Task) done() {
	if t.Done != nil {
		t.Done(t)
	}
}

// Do gives the drive a task and returns when it has ended. It may block when the
// drive is [Drive.Blocking]. Done isn't called.
func (d *Drive) Do(t *Task) {
	if d.accept(t) {
		d.perform(t)
	}
}

// Queued returns the tags of the queued commands that the drive has, a bit each.
func (d *Drive) Queued() uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tags
}

// accept takes a task in. It returns false if the task has its answer already.
func (d *Drive) accept(t *Task) bool {
	t.Ending, t.Answer, t.Moved, t.Halted, t.cleared, t.drq = NoAnswer, Registers{}, 0, false, false, wordBlock
	d.mu.Lock()
	defer d.mu.Unlock()
	t.command = d.find(&t.Taskfile)
	f := d.admit(t)
	if f.failed() {
		d.answer(t, f)
		t.Ending = RegisterFIS // it never was in the queue
		return false
	}
	if t.command.protocol.Queued() {
		d.queued[t.Tag()] = t
		d.tags |= 1 << t.Tag()
	} else {
		d.current = t
	}
	d.running++
	d.remember(&t.Taskfile)
	return true
}

// admit returns why a task can't be taken in. mu is held.
func (d *Drive) admit(t *Task) failure {
	c := t.command
	if d.halted && !readsErrorLog(&t.Taskfile) {
		t.Halted = true
		return outOfOrder
	}
	if d.resets > 0 || d.current != nil {
		// The host should have waited until BSY was clear.
		return outOfOrder
	}
	queued := c != nil && c.protocol.Queued()
	if d.tags != 0 && !queued {
		d.halt(ncqError{notQueued: true, task: t.Taskfile, failure: outOfOrder})
		return outOfOrder
	}
	if queued && (d.tags>>t.Tag()&1 != 0 || t.Tag() >= d.opt.QueueDepth) {
		d.halt(ncqError{tag: t.Tag(), task: t.Taskfile, failure: outOfOrder})
		return outOfOrder
	}
	f := d.allowed(t)
	if f.failed() && queued {
		d.halt(ncqError{tag: t.Tag(), task: t.Taskfile, failure: f})
	}
	if !queued && t.Command != requestSenseDataExt {
		d.sense = failure{}
	}
	if t.Command != securityErasePrepare && t.Command != securityEraseUnit {
		d.security.prepared = false
	}
	return f
}

// allowed returns why the state of the drive keeps a task from being done. mu is held.
func (d *Drive) allowed(t *Task) failure {
	c := t.command
	switch {
	case c == nil:
		return noCommand
	case d.closed:
		return broken
	case d.power.mode == sleeping:
		return outOfOrder // only a reset wakes it
	case c.class&whileSanitized == 0 && d.unsanitary():
		return d.sanitizeState()
	case c.class&whileLocked == 0 && d.security.locked:
		return locked
	case c.class&lba28 != 0 && t.Device&deviceLBA == 0:
		return badField // cylinders, heads and sectors are long gone
	}
	return failure{}
}

// halt takes all queued tasks down, until somebody has read why. mu is held.
func (d *Drive) halt(why ncqError) {
	d.clear()
	d.halted, d.ncqError = true, why
}

// clear takes down all tasks that are in the drive. mu is held.
func (d *Drive) clear() {
	for tag, t := range d.queued {
		if t != nil {
			t.cleared = true
			d.queued[tag] = nil
			d.stale++
		}
	}
	d.tags = 0
	if d.current != nil {
		d.current.cleared = true
		d.current = nil
		d.stale++
	}
	if d.stale > 0 {
		close(d.takedown)
		d.takedown = make(chan struct{})
	}
}

// perform does a task that was accepted.
func (d *Drive) perform(t *Task) {
	var f failure
	if ready, ok := d.begin(t); ok {
		if d.waitUntil(ready, t.down) {
			f = t.command.run(d, t)
			if t.command.class&remembers != 0 && !f.failed() {
				f = d.save()
			}
		} else {
			f = broken
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.end(t, f)
}

// begin lets a task begin, if it wasn't taken down, at the time that it returns.
func (d *Drive) begin(t *Task) (ready time.Time, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.stale > 0 && !t.cleared {
		// What was taken down moves no data any more once another one begins.
		d.quiet.Wait()
	}
	if t.cleared {
		return ready, false
	}
	if t.command.class&medium != 0 {
		ready = d.spinUp()
	}
	t.down = d.takedown
	return ready, true
}

// end ends a task. mu is held.
func (d *Drive) end(t *Task, f failure) {
	d.running--
	defer d.quiet.Broadcast()
	if t.cleared {
		d.stale--
		t.Ending = NoAnswer
		return
	}
	if t.command.class&medium != 0 {
		d.power.since = time.Now()
	}
	if d.current == t {
		d.current = nil
		if d.halted && !f.failed() && readsErrorLog(&t.Taskfile) {
			d.halted = false
		}
	} else {
		d.queued[t.Tag()] = nil
		d.tags &^= 1 << t.Tag()
		if f.failed() {
			d.halt(ncqError{tag: t.Tag(), task: t.Taskfile, failure: f})
		}
	}
	d.answer(t, f)
}

// answer puts down how a task ended. mu is held.
func (d *Drive) answer(t *Task, f failure) {
	r := &t.Answer
	r.Status |= StatusDRDY | statusSeek
	switch {
	case t.command != nil && t.command.protocol.Queued():
		t.Ending = DeviceBitsFIS
	case t.command != nil && t.command.protocol == PIODataIn && !f.failed():
		t.Ending = PIOSetupFIS
	default:
		t.Ending = RegisterFIS
	}
	if f.failed() {
		t.Moved = 0
		r.Error = f.err
		r.Device, r.Count = t.Device, 0
		if f.err != 0 {
			r.Status |= StatusERR
		}
		if f.fault {
			r.Status |= StatusDF
		}
		if f.has {
			r.LBA = f.lba
			if t.command.class&lba28 != 0 {
				r.LBA, r.Device = f.lba&0xffffff, t.Device&0xf0|byte(f.lba>>24&0x0f)
			}
		}
		d.failed(t, f)
	}
	if d.settings.senseData && f.key != lun.NoSense {
		r.Status |= StatusSense
		d.sense = f
	}
}

// waitUntil waits, and returns false if the task was taken down meanwhile.
func (d *Drive) waitUntil(at time.Time, down <-chan struct{}) bool {
	left := time.Until(at)
	if left <= 0 {
		return true
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-down:
	case <-d.closing:
	}
	return false
}
