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
	pool *bufferPool
	// class is the index of the pool that b goes back to.
	class int
}

func (b *buffer) hold() { b.refs.Add(1) }

// drop gives up one hold. The last one returns the memory.
func (b *buffer) drop() {
	if b.refs.Add(-1) == 0 {
		b.pool.used.Add(-int64(len(b.b)))
		b.pool.classes[b.class].Put(b)
	}
}

// forget gives the memory back to the garbage collector instead of the pool,
// for when someone may still be writing to it.
func (b *buffer) forget() { b.pool.used.Add(-int64(len(b.b))) }

const (
	minBufferBits = 10
	maxBufferBits = 26

	// bufferSlack is what each size has beyond its power of two, so that data of
	// such a length still fits together with its headers and digests.
	bufferSlack = 4096
)

// bufferPool hands out buffers and bounds what is out at a time.
type bufferPool struct {
	limit   int64
	used    atomic.Int64
	classes [maxBufferBits - minBufferBits + 1]sync.Pool
}

// get returns a buffer of at least n bytes with one hold, or nil if the limit
// is reached or n is beyond all sizes.
func (p *bufferPool) get(n int) *buffer {
	class := 0
	if n > 1<<minBufferBits {
		class = bits.Len(uint(max(n-bufferSlack, 1)-1)) - minBufferBits
		class = max(class, 1)
	}
	if class >= len(p.classes) {
		return nil
	}
	size := classSize(class)
	if p.used.Add(int64(size)) > p.limit {
		p.used.Add(-int64(size))
		return nil
	}
	b, _ := p.classes[class].Get().(*buffer)
	if b == nil {
		b = &buffer{b: make([]byte, size), pool: p, class: class}
	}
	b.refs.Store(1)
	return b
}

func classSize(class int) int {
	if class == 0 {
		return 1 << minBufferBits
	}
	return 1<<(minBufferBits+class) + bufferSlack
}

// maxBlocks is the most bytes of blocks that a command may move within the limit:
// their protection information, 8 bytes for 512, fits beside them, and in an
// answer so do the headers of the smallest PDUs.
func (p *bufferPool) maxBlocks() int {
	class := len(p.classes) - 1
	for class > 0 && int64(classSize(class)) > p.limit {
		class--
	}
	return 1 << (minBufferBits + class - 1)
}
