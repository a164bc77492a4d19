package ata

import (
	"time"

	"lunlab/lun"
	"lunlab/lun/store"
)

// Bits of word 59 about the Sanitize feature set.
const (
	sanitizeBlock      = 0x8000
	sanitizeOver       = 0x4000
	sanitizeCrypto     = 0x2000
	sanitizeSet        = 0x1000
	sanitizeACS        = 0x0800 // commands that are allowed meanwhile are as in ACS-3
	sanitizeAntifreeze = 0x0400
)

// states of the Sanitize feature set (ACS-4 4.17.9).
type sanitizeStateCode byte

const (
	sanitizeIdle sanitizeStateCode = iota
	sanitizeFrozen
	sanitizeRunning
	sanitizeFailed
)

// sanitized is the state of the Sanitize feature set. It outlives a power cycle, but
// for what is frozen.
type sanitized struct {
	state      sanitizeStateCode
	antifreeze bool
	erase      bool      // BLOCK ERASE
	pattern    uint32    // of OVERWRITE, the last pass
	mayFail    bool      // FAILURE MODE: SANITIZE STATUS EXT may end a failure
	done       bool      // the last operation ended without an error
	began      time.Time // the operation
	doneBytes  uint64
}

func (s *sanitized) powerOn() {
	s.antifreeze = false
	if s.state == sanitizeFrozen {
		s.state = sanitizeIdle
	}
}

func (d *Drive) sanitizeWord() uint16 {
	w := uint16(sanitizeSet | sanitizeACS | sanitizeAntifreeze | sanitizeOver)
	if trims(d) {
		w |= sanitizeBlock
	}
	return w
}

// unsanitary tells whether only what has to do with it may be done. mu is held.
func (d *Drive) unsanitary() bool {
	return d.sanitized.state == sanitizeRunning || d.sanitized.state == sanitizeFailed
}

func (d *Drive) sanitizeState() failure {
	f := failure{err: ErrorABRT, key: lun.NotReady, code: lun.ASCNotReadySanitizeInProgress}
	if d.sanitized.state == sanitizeFailed {
		f.key, f.code = lun.MediumError, lun.ASCSanitizeFailed
	}
	return f
}

// Features of SANITIZE DEVICE (ACS-4 7.37), and what LBA has to have beside them.
const (
	sanitizeStatus         = 0x0000
	sanitizeCryptoScramble = 0x0011
	sanitizeBlockErase     = 0x0012
	sanitizeOverwrite      = 0x0014
	sanitizeFreezeLock     = 0x0020
	sanitizeAntifreezeLock = 0x0040

	keyBlockErase = 0x426b4572
	keyFreeze     = 0x46724c6b
	keyAntifreeze = 0x416e7469
	keyOverwrite  = 0x4f57 // above the pattern

	reasonFailed = 1 // the operation was unsuccessful
)

// sanitize is SANITIZE DEVICE.
func (d *Drive) sanitize(t *Task) failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.sanitized
	switch t.Feature {
	case sanitizeStatus:
		if s.state == sanitizeFailed && s.mayFail && t.Count&1 == 1 { // CLEAR SANITIZE OPERATION FAILED
			s.state = sanitizeIdle
		}
		if s.state == sanitizeFailed {
			f := d.sanitizeState()
			f.lba, f.has = reasonFailed, true
			return f
		}
	case sanitizeFreezeLock:
		if uint32(t.LBA) != keyFreeze {
			return badField
		}
		if d.unsanitary() {
			return d.sanitizeState()
		}
		if s.antifreeze {
			return badField
		}
		s.state = sanitizeFrozen
	case sanitizeAntifreezeLock:
		if uint32(t.LBA) != keyAntifreeze {
			return badField
		}
		if d.unsanitary() {
			return d.sanitizeState()
		}
		if s.state == sanitizeFrozen {
			return badField
		}
		s.antifreeze = true
	case sanitizeBlockErase, sanitizeOverwrite:
		if f := d.beginSanitize(t); f.failed() {
			return f
		}
	default:
		return badField
	}
	t.Answer.Count, t.Answer.LBA = d.sanitizeAnswer()
	return failure{}
}

// sanitizeAnswer is the COUNT and LBA that SANITIZE answers with. mu is held.
func (d *Drive) sanitizeAnswer() (count uint16, lba uint64) {
	s := &d.sanitized
	if s.done {
		count |= 0x8000
	}
	lba = 0xffff
	switch s.state {
	case sanitizeRunning:
		count |= 0x4000
		lba = d.sanitizeProgress()
	case sanitizeFrozen:
		count |= 0x2000
	}
	if s.antifreeze {
		count |= 0x1000
	}
	return count, lba
}

// sanitizeProgress is in 65,536ths. mu is held.
func (d *Drive) sanitizeProgress() uint64 {
	part := float64(d.sanitized.doneBytes) / float64(d.blocks*d.size)
	if t := d.opt.EraseTime; t > 0 {
		part = min(part, float64(time.Since(d.sanitized.began))/float64(t))
	}
	return uint64(min(part, 1) * 0xffff)
}

// beginSanitize starts an operation in the background. mu is held.
func (d *Drive) beginSanitize(t *Task) failure {
	s := &d.sanitized
	if s.state == sanitizeFrozen || s.state == sanitizeRunning || s.state == sanitizeFailed && !s.mayFail {
		return d.sanitizeState()
	}
	if d.security.locked {
		return locked
	}
	pattern, failureMode := uint32(0), t.Count&0x10 != 0
	switch {
	case t.Feature == sanitizeBlockErase && (!trims(d) || uint32(t.LBA) != keyBlockErase):
		return badField
	case t.Feature == sanitizeOverwrite && t.LBA>>32 != keyOverwrite:
		return badField
	case t.Feature == sanitizeOverwrite:
		// Of several passes the last is what remains. Each inverts the one before if asked to.
		passes := int(t.Count & 0x0f)
		if passes == 0 {
			passes = 16
		}
		pattern = uint32(t.LBA)
		if t.Count&0x80 != 0 && passes%2 == 0 {
			pattern = ^pattern
		}
	}
	s.erase, s.pattern, s.mayFail = t.Feature == sanitizeBlockErase, pattern, failureMode
	d.startSanitize()
	return failure{}
}

// startSanitize begins the operation in the background. mu is held, or the drive isn't in use
// yet.
func (d *Drive) startSanitize() {
	s := &d.sanitized
	s.state, s.done, s.began, s.doneBytes = sanitizeRunning, false, time.Now(), 0
	pattern, erase := s.pattern, s.erase
	d.work.Go(func() {
		ok := d.eraseAll(pattern, erase, nil)
		d.mu.Lock()
		switch {
		case ok:
			s.done, s.state = true, sanitizeIdle
		case !d.closed: // else it begins again when the drive does
			s.state = sanitizeFailed
		}
		d.mu.Unlock()
		d.save() // if that fails, it is done again after a restart
	})
}

// erasePiece is how much is erased between two looks at whether to end, in bytes.
const erasePiece = 64 << 20

// eraseAll writes a pattern of four bytes to all of the medium, or unmaps it, and takes
// as long as the options say at the least. It returns false when the drive is closed, down
// is, or the store fails.
func (d *Drive) eraseAll(pattern uint32, unmap bool, down <-chan struct{}) bool {
	began := time.Now()
	for size, off := d.blocks*d.size, uint64(0); off < size; {
		n := min(size-off, erasePiece)
		var err error
		switch {
		case unmap:
			err = d.sparse.Unmap(int64(off), int64(n))
		case pattern == 0:
			err = store.Zero(d.store, int64(off), int64(n))
		default:
			err = d.fill(pattern, off, n)
		}
		if err != nil {
			return false
		}
		off += n
		d.mu.Lock()
		d.sanitized.doneBytes = off
		d.mu.Unlock()
		select {
		case <-d.closing:
			return false
		case <-down:
			return false
		default:
		}
	}
	d.heal(0, d.blocks)
	return d.store.Sync() == nil && d.waitUntil(began.Add(d.opt.EraseTime), down)
}

func (d *Drive) fill(pattern uint32, off, n uint64) error {
	buf := make([]byte, verifyPiece)
	for i := range buf {
		buf[i] = byte(pattern >> (8 * (i % 4)))
	}
	for n > 0 {
		part := buf[:min(n, verifyPiece)]
		if _, err := d.store.WriteAt(part, int64(off)); err != nil {
			return err
		}
		off, n = off+uint64(len(part)), n-uint64(len(part))
	}
	return nil
}
