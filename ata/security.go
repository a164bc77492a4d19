package ata

import (
	"crypto/subtle"
	"encoding/binary"
)

const (
	securityErasePrepare = 0xf3 // which only counts when
	securityEraseUnit    = 0xf4 // comes next

	passwordLength = 32
)

// usualIdentifier is the Master Password Identifier at first, of a password that
// nobody has changed.
const usualIdentifier = 0xfffe

// maxAttempts is how many wrong passwords the drive takes until it is reset.
const maxAttempts = 5

// security is the state of the Security feature set (ACS-4 4.18). It outlives a power
// cycle but for what powerOn resets.
type security struct {
	user       *[passwordLength]byte // nil: there is none, and security isn't enabled
	master     [passwordLength]byte
	identifier uint16 // of the master password
	maximum    bool   // level: the master password can but erase

	locked, frozen bool
	attempts       int
	prepared       bool // the command before was SECURITY ERASE PREPARE
}

func (s *security) enabled() bool { return s.user != nil }

func (s *security) powerOn() {
	s.locked, s.frozen, s.attempts, s.prepared = s.enabled(), false, 0, false
}

// word is word 128 of IDENTIFY DEVICE.
func (s *security) word() uint16 {
	w := uint16(1<<5 | 1) // enhanced erase, security itself
	for bit, on := range map[int]bool{8: s.maximum, 4: s.attempts >= maxAttempts, 3: s.frozen, 2: s.locked, 1: s.enabled()} {
		if on {
			w |= 1 << bit
		}
	}
	return w
}

// match tells whether a block has the password that opens what is asked for: the user's, or the
// master's where that may.
func (s *security) match(b []byte, masterMay bool) bool {
	p := b[2 : 2+passwordLength]
	if b[0]&1 == 1 {
		return masterMay && subtle.ConstantTimeCompare(p, s.master[:]) == 1
	}
	return s.enabled() && subtle.ConstantTimeCompare(p, s.user[:]) == 1
}

func (d *Drive) securitySetPassword(t *Task) failure {
	b, f := t.gather(wordBlock)
	if f.failed() {
		return f
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.security
	if s.frozen {
		return locked
	}
	if b[0]&1 == 1 {
		copy(s.master[:], b[2:])
		if id := binary.LittleEndian.Uint16(b[34:]); id != 0 && id != 0xffff {
			s.identifier = id
		}
		return failure{}
	}
	s.user = (*[passwordLength]byte)(append([]byte(nil), b[2:2+passwordLength]...))
	s.maximum = b[1]&1 == 1
	return failure{}
}

func (d *Drive) securityUnlock(t *Task) failure {
	b, f := t.gather(wordBlock)
	if f.failed() {
		return f
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.security
	switch {
	case s.frozen, s.attempts >= maxAttempts:
		return locked
	case !s.enabled():
		return failure{}
	case !s.match(b, !s.maximum):
		s.attempts++
		return locked
	}
	s.locked, s.attempts = false, 0
	return failure{}
}

func (d *Drive) securityPrepare(*Task) failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.security.frozen {
		return locked
	}
	d.security.prepared = true
	return failure{}
}

// securityErase is SECURITY ERASE UNIT: all is zeros afterwards, and there is no
// password. An enhanced erase does no less.
func (d *Drive) securityErase(t *Task) failure {
	b, f := t.gather(wordBlock)
	if f.failed() {
		return f
	}
	if f := d.mayErase(b); f.failed() {
		return f
	}
	if !d.eraseAll(0, trims(d), t.down) {
		return broken
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.security.user, d.security.maximum, d.security.locked = nil, false, false
	return failure{}
}

func (d *Drive) mayErase(b []byte) failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.security
	switch {
	case s.frozen, s.attempts >= maxAttempts && s.locked:
		return locked
	case !s.prepared:
		return outOfOrder
	case !s.match(b, true):
		return locked
	}
	s.prepared = false
	return failure{}
}

func (d *Drive) securityFreeze(*Task) failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.security.frozen = true
	return failure{}
}

func (d *Drive) securityDisable(t *Task) failure {
	b, f := t.gather(wordBlock)
	if f.failed() {
		return f
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.security
	if s.frozen || s.enabled() && !s.match(b, !s.maximum) {
		return locked
	}
	s.user, s.maximum = nil, false
	return failure{}
}
