package lun

import "time"

// Clock is the time that commands are held up in, where that is done on purpose. It
// is safe for concurrent use.
type Clock interface {
	Now() time.Time

	// Wait returns after d, or never because of that if d is negative, and when a
	// or b is closed. It tells whether d is over.
	Wait(d time.Duration, a, b <-chan struct{}) bool
}

// RealTime is the machine's own clock.
var RealTime Clock = realTime{}

type realTime struct{}

func (realTime) Now() time.Time { return time.Now() }

func (realTime) Wait(d time.Duration, a, b <-chan struct{}) bool {
	var over <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-over:
		return true
	case <-a:
	case <-b:
	}
	return false
}
