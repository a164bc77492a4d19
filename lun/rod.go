package lun

import (
	"bytes"
	"crypto/rand"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ROD tokens (SPC-5 5.17.6): data that an initiator names by 512 bytes that
// nobody can guess, so that another disk can be told to write it. Whoever has a
// token may read what it stands for.

// ROD types. A token stands for the data as it was when it was made: it is
// cancelled as soon as any of that changes.
const (
	rodVulnerable = 0x00800001 // point in time copy, change vulnerable
	rodZero       = 0xffff0001 // block device zero: zeros without end
)

const (
	rodTokenSize   = 512
	rodTokenLength = rodTokenSize - 8 // ROD TOKEN LENGTH

	// maxRODs is how many tokens of a disk can be good at once, maxRODRanges and
	// maxRODBytes what one may stand for, and most that one command writes.
	maxRODs      = 64
	maxRODRanges = 64
	maxRODBytes  = 1 << 30

	// In seconds: how long a token may lie unused, at the most and unless asked
	// otherwise, and how old one becomes.
	maxRODTimeout     = 600
	defaultRODTimeout = 60
	rodLifetime       = 3600

	// keptRODs is of how many tokens that are no longer good it is known why.
	keptRODs = 64
)

// byteRange is size bytes at off of a store.
type byteRange struct{ off, size uint64 }

// rod is a token that a disk has made.
type rod struct {
	token  [rodTokenSize]byte
	ranges []byteRange // what it stands for, one after the other
	size   uint64      // the sum of them

	// good is true until gone is set.
	good atomic.Bool

	// Under rodTokens.mu.
	gone    uint16 // additional sense code: why it is no longer good
	using   int    // operations that read it, during which it doesn't expire
	timeout time.Duration
	made    time.Time
	used    time.Time
}

// rodTokens is the tokens that a disk has made. The zero value is none.
type rodTokens struct {
	live atomic.Int32 // the good ones; while it is 0 a write looks no further

	mu   sync.Mutex
	list []*rod // oldest first
}

// end makes a token unusable. mu is held.
func (t *rodTokens) end(r *rod, code uint16) {
	if r.good.CompareAndSwap(true, false) {
		r.gone = code
		t.live.Add(-1)
	}
}

// expire ends the tokens whose time is over, and forgets the oldest that are no
// longer good. mu is held.
func (t *rodTokens) expire() {
	now, dead := time.Now(), 0
	for _, r := range t.list {
		if r.using == 0 && (now.Sub(r.used) > r.timeout || now.Sub(r.made) > rodLifetime*time.Second) {
			t.end(r, ASCTokenExpired)
		}
		if !r.good.Load() {
			dead++
		}
	}
	t.list = slices.DeleteFunc(t.list, func(r *rod) bool {
		if !r.good.Load() && r.using == 0 && dead > keptRODs {
			dead--
			return true
		}
		return false
	})
}

// changing ends the tokens for what n blocks at lba of the disk are part of,
// before these change. A lock for them is held.
func (d *Disk) changing(lba, n uint64) {
	if d.rods.live.Load() == 0 {
		return
	}
	from, to := lba*d.blockSize(), (lba+n)*d.blockSize()
	d.rods.cancel(func(b byteRange) bool { return b.off < to && from < b.off+b.size })
}

// cancel ends the tokens that stand for a range that is one of those meant.
func (t *rodTokens) cancel(meant func(byteRange) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.list {
		if r.good.Load() && slices.ContainsFunc(r.ranges, meant) {
			t.end(r, ASCTokenCancelled)
		}
	}
}

// cancelAll ends all tokens.
func (t *rodTokens) cancelAll() { t.cancel(func(byteRange) bool { return true }) }

// newROD makes a token for ranges of blocks, unless there are too many. timeout is
// in seconds.
func (d *Disk) newROD(ranges []run, timeout uint32) (*rod, bool) {
	now := time.Now()
	r := &rod{timeout: time.Duration(timeout) * time.Second, made: now, used: now}
	for _, x := range ranges {
		b := byteRange{x.lba * d.blockSize(), x.n * d.blockSize()}
		r.ranges = append(r.ranges, b)
		r.size += b.size
	}
	rand.Read(r.token[128:])
	rand.Read(r.token[8:16]) // COPY MANAGER ROD TOKEN IDENTIFIER
	put32(r.token[:], rodVulnerable)
	put16(r.token[6:], rodTokenLength)
	copy(r.token[16:48], d.cscdDescriptor())
	put64(r.token[56:], r.size) // NUMBER OF BYTES REPRESENTED, its lower half
	capacity := d.capacityData()
	copy(r.token[96:], capacity[8:16])
	t := &d.rods
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire()
	if t.live.Load() >= maxRODs {
		return nil, false
	}
	r.good.Store(true)
	t.live.Add(1)
	t.list = append(t.list, r)
	return r, true
}

// cscdDescriptor is the identification descriptor of the disk (SPC-5 6.4.5.2).
func (d *Disk) cscdDescriptor() []byte {
	b := make([]byte, targetSize)
	copy(b, []byte{identificationTarget, d.deviceType(), 0, 0, 1, 3, 0, byte(len(d.opt.NAA))})
	copy(b[8:], d.opt.NAA)
	return b
}

// useROD finds the token that 512 bytes are, to be read until releaseROD, or
// says what is wrong with it (SPC-5 5.17.6.5.2.3). from is the disk that made it,
// nil for the block device zero token.
func (d *Disk) useROD(token []byte) (r *rod, from *Disk, s Sense) {
	bad := func(code uint16) (*rod, *Disk, Sense) {
		return nil, nil, Sense{Key: IllegalRequest, Code: code}
	}
	if be16(token[6:]) != rodTokenLength {
		return bad(ASCInvalidTokenLength)
	}
	switch be32(token) {
	case rodZero:
		return nil, nil, Sense{}
	case rodVulnerable:
	default:
		return bad(ASCUnsupportedTokenType)
	}
	if from = d.opt.Copies.find(token[20:44], nil); from == nil {
		return bad(ASCRemoteTokenUsageNotSupported)
	}
	t := &from.rods
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire()
	for _, r := range t.list {
		if !bytes.Equal(r.token[8:16], token[8:16]) {
			continue
		}
		switch {
		case !bytes.Equal(r.token[:], token):
			return bad(ASCTokenCorrupt)
		case !r.good.Load():
			return bad(r.gone)
		}
		r.using++
		return r, from, Sense{}
	}
	return bad(ASCTokenUnknown)
}

// releaseROD ends the use of a token of this disk, and the token if remove is
// set.
func (d *Disk) releaseROD(r *rod, remove bool) {
	t := &d.rods
	t.mu.Lock()
	defer t.mu.Unlock()
	r.using--
	r.used = time.Now()
	if remove {
		t.end(r, ASCTokenDeleted)
	}
}

// read fills p with what the token stands for from the byte at off on, and zeros
// behind its end. from is the disk that made it. It returns false if that can't
// be read, or the token is no longer good.
func (r *rod) read(from *Disk, p []byte, off uint64) bool {
	for _, b := range r.ranges {
		if off >= b.size {
			off -= b.size
			continue
		}
		part := p[:min(uint64(len(p)), b.size-off)]
		if len(part) > 0 && from.copyOut(part, b.off+off).Key != NoSense {
			return false
		}
		p, off = p[len(part):], 0
	}
	clear(p)
	// A write ends the token before it changes anything.
	return r.good.Load()
}
