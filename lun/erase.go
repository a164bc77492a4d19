package lun

import (
	"math"
	"sync/atomic"
	"time"
)

// erasePiece is how much of the medium is erased between two looks at whether
// the disk is closing, in bytes.
const erasePiece = 16 << 20

// eraseTimeout is the time-out in seconds that is recommended for what goes over the
// whole medium: an hour beyond the time that it takes if the store writes no faster
// than 32 MiB/s, and beyond [DiskOptions.EraseTime].
func eraseTimeout(d *Disk) uint32 {
	const slowest = 32 << 20
	size := d.geometry().most * d.blockSize()
	return uint32(min(3600+size/slowest+uint64(d.opt.EraseTime/time.Second), math.MaxUint32))
}

// job is a FORMAT UNIT or SANITIZE, which goes on by itself: no abort and no
// reset ends it (SBC-4 4.11.2).
type job struct {
	code  uint16 // the additional sense code while it runs
	start time.Time
	part  atomic.Uint32 // of 65,536 of the work
	done  chan struct{}
	sense Sense // the outcome, when done is closed
}

// progress is the PROGRESS INDICATION of a job that takes least at the least.
func (j *job) progress(least time.Duration) [3]byte {
	part := j.part.Load()
	if least > 0 {
		part = uint32(min(int64(part), int64(time.Since(j.start))*0xffff/int64(least)))
	}
	return progress(uint16(min(part, 0xffff)))
}

// erase runs work over the whole medium with no other command on it, and
// returns at once if immed is set. running is the bit of the state meanwhile,
// failed the one afterwards if it fails.
func (d *Disk) erase(c *Command, immed bool, code uint16, running, failed uint32, work func(*job) Sense) Sense {
	j := &job{code: code, start: time.Now(), done: make(chan struct{})}
	d.mu.Lock()
	if s := d.erasable(d.state.Load(), failed); s.Key != NoSense {
		d.mu.Unlock()
		return s
	}
	if d.closed {
		d.mu.Unlock()
		return Sense{Key: HardwareError, Code: ASCInternalTargetFailure}
	}
	if unpowered(d.cuts.Load()) {
		d.mu.Unlock()
		return powerLost()
	}
	d.job.Store(j)
	d.state.Store(d.state.Load() | running)
	d.erasures.Add(1) // after state, so that who sees it sees that too
	d.background.Add(1)
	d.mu.Unlock()
	go func() {
		defer d.background.Done()
		// Commands that were let in before end first, or find themselves overtaken.
		d.locks.lock(0, allStripes)
		d.rods.cancelAll()
		j.sense = work(j)
		if j.sense.Key == NoSense {
			if err := d.unseal(0, d.geometry().most); err != nil {
				j.sense = d.writeError(err, 0)
			}
		}
		if j.sense.Key == NoSense {
			if d.zones != nil {
				if err := d.resetZones(); err != nil {
					j.sense = d.writeError(err, 0)
				}
			}
		}
		if j.sense.Key == NoSense {
			j.sense = d.flush()
		}
		if j.sense.Key == NoSense && d.opt.Memory != nil {
			j.sense = d.save()
		}
		d.locks.unlock(0, allStripes)
		d.wait(d.opt.EraseTime - time.Since(j.start))
		d.mu.Lock()
		state := d.state.Load() &^ (running | formatFailed | sanitizeFailed | sanitizeStuck)
		if j.sense.Key != NoSense {
			state |= failed
		}
		d.state.Store(state)
		d.mu.Unlock()
		close(j.done)
	}()
	if immed {
		return Sense{}
	}
	select {
	case <-j.done:
		return j.sense
	case <-c.Cancel:
		return Sense{Key: AbortedCommand}
	}
}

// erasable returns why an erasure can't begin in a state. failed is what the state
// has afterwards if it fails. A SANITIZE that failed leaves nothing but another one,
// which may not leave more than it did (SBC-4 4.11.1).
func (d *Disk) erasable(state, failed uint32) Sense {
	if failed&sanitizeFailed != 0 {
		state &^= sanitizeFailed
	}
	s := d.notReady(state &^ formatFailed)
	if s.Key == NoSense && state&sanitizeStuck&^failed != 0 {
		return InvalidField(1, 5) // AUSE
	}
	return s
}

// overtaken returns why a command that writes can't do so anymore: an erasure has
// begun since it was let in, when as many had begun as it says, and what it
// wrote would be left behind. The locks of the blocks are held.
func (d *Disk) overtaken(erasures uint32) Sense {
	if d.erasures.Load() == erasures {
		return Sense{}
	}
	j := d.job.Load()
	return Sense{Key: NotReady, Code: j.code, Specific: j.progress(d.opt.EraseTime)}
}

// wait sleeps until the disk is closed.
func (d *Disk) wait(t time.Duration) {
	if t <= 0 {
		return
	}
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.closing:
	}
}

// pieces calls do for the medium piece by piece, and keeps count of progress.
func (d *Disk) pieces(j *job, do func(off, n uint64) Sense) Sense {
	size := d.geometry().most * d.blockSize()
	for off := uint64(0); off < size; off += erasePiece {
		select {
		case <-d.closing:
			return Sense{Key: HardwareError, Code: ASCInternalTargetFailure}
		default:
		}
		if s := do(off, min(erasePiece, size-off)); s.Key != NoSense {
			return s
		}
		j.part.Store(uint32(float64(off) / float64(size) * 0xffff))
	}
	j.part.Store(0xffff)
	return Sense{}
}

// eraseAll makes the whole medium read as zeros. A thin disk gives it all back.
func (d *Disk) eraseAll(j *job) Sense {
	if d.sparse != nil {
		if err := d.sparse.Unmap(0, d.store.Size()); err != nil {
			return d.writeError(err, 0)
		}
		j.part.Store(0xffff)
		return Sense{}
	}
	return d.pieces(j, func(off, n uint64) Sense {
		if err := d.zero(int64(off), int64(n)); err != nil {
			return d.writeError(err, off)
		}
		return Sense{}
	})
}

// overwrite writes one block's content to every block, or, of a thin disk, to
// those that are mapped: the others hold nothing to overwrite.
func (d *Disk) overwrite(j *job, block []byte) Sense {
	return d.pieces(j, func(off, n uint64) Sense {
		for lba, end := off/d.blockSize(), (off+n)/d.blockSize(); lba < end; {
			mapped, run, s := d.mappedRun(lba, end-lba)
			if s.Key != NoSense {
				return s
			}
			if mapped {
				if s := d.fill(block, lba, run); s.Key != NoSense {
					return s
				}
			}
			lba += run
		}
		return Sense{}
	})
}

// repeat makes a block of a pattern: whole copies of it, and what remains of it
// at the end.
func repeat(pattern []byte, size uint64) []byte {
	block := make([]byte, size)
	for i := 0; i < len(block); {
		i += copy(block[i:], pattern)
	}
	return block
}
