package iscsi

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// buffer is memory for data on its way, with a count of who holds it.
type buffer struct {
	b    []byte // of full capacity
	refs atomic.Int32
	// of is whose it is, nil if it isn't counted.
	of *account
	// class is the index of the pool that b goes back to.
	class int
}

// uncounted makes a buffer of n bytes, with one hold, that no account has.
func uncounted(n int) *buffer {
	b := &buffer{b: make([]byte, n)}
	b.refs.Store(1)
	return b
}

func (b *buffer) hold() { b.refs.Add(1) }

// drop gives up one hold. The last one returns the memory.
func (b *buffer) drop() {
	if b.refs.Add(-1) == 0 && b.of != nil {
		p := b.of.pool
		b.of.add(-len(b.b))
		b.of = nil
		p.classes[b.class].Put(b)
	}
}

const (
	minBufferBits = 10
	maxBufferBits = 26

	// bufferSlack is what each size has beyond its power of two, so that data of
	// such a length still fits together with its headers and digests.
	bufferSlack = 4096
)

// bufferPool hands out buffers and bounds what is out at a time. Half of that is
// divided: each account has a share that no other touches. The other half is there
// for all, and none takes more of it than it leaves, so that one that gives nothing
// back doesn't keep others from long transfers.
type bufferPool struct {
	limit, share int64
	used         atomic.Int64
	common       atomic.Int64 // what is used beyond shares
	classes      [maxBufferBits - minBufferBits + 1]sync.Pool
}

// init bounds the pool to limit bytes of at most accounts accounts.
func (p *bufferPool) init(limit int64, accounts int) {
	p.limit, p.share = limit, limit/2/int64(accounts)
}

// account is what a session has of a pool.
type account struct {
	pool *bufferPool
	used atomic.Int64
}

// get returns a buffer of at least n bytes with one hold, or nil if the account
// may not have it or n is beyond all sizes.
func (a *account) get(n int) *buffer {
	class := 0
	if n > 1<<minBufferBits {
		class = bits.Len(uint(max(n-bufferSlack, 1)-1)) - minBufferBits
		class = max(class, 1)
	}
	p := a.pool
	if class >= len(p.classes) {
		return nil
	}
	size := classSize(class)
	if !a.add(size) {
		a.add(-size)
		return nil
	}
	b, _ := p.classes[class].Get().(*buffer)
	if b == nil {
		b = &buffer{b: make([]byte, size), class: class}
	}
	b.of = a
	b.refs.Store(1)
	return b
}

// add counts n bytes in, or out, and tells whether they are within the bounds.
func (a *account) add(n int) bool {
	p, used := a.pool, a.used.Add(int64(n))
	p.used.Add(int64(n))
	beyond := max(used-p.share, 0)
	if d := beyond - max(used-int64(n)-p.share, 0); d != 0 {
		return beyond <= p.limit/2-p.common.Add(d)
	}
	return true
}

func classSize(class int) int {
	if class == 0 {
		return 1 << minBufferBits
	}
	return 1<<(minBufferBits+class) + bufferSlack
}

// maxBlocks is the most bytes of blocks that a command may move within what an
// account that is alone can have: their protection information, 8 bytes for 512, fits
// beside them, and in an answer so do the headers of the smallest PDUs.
func (p *bufferPool) maxBlocks() int {
	class := len(p.classes) - 1
	for class > 0 && int64(classSize(class)) > p.share+p.limit/4 {
		class--
	}
	return 1 << (minBufferBits + class - 1)
}
