package tcmu

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"lunlab/lun"
)

// producer plays the kernel: it puts entries into a ring and takes the answers.
// It is driven by one goroutine.
type producer struct {
	t       testing.TB
	mem     []byte
	off     uint32
	size    uint32
	head    uint32
	cleaned uint32
	bell    *fakeBell

	free []uint16 // command ids
}

const (
	prodOff      = 128
	prodDataSlot = 16 << 10 // data area of one command id
)

// newProducer makes a ring of ringSize bytes and a data area for ids commands
// at once.
func newProducer(t testing.TB, ringSize uint32, ids int) *producer {
	t.Helper()
	words := make([]uint64, (prodOff+int(ringSize)+(ids+1)*prodDataSlot)/8)
	p := &producer{
		t: t, off: prodOff, size: ringSize,
		mem:  unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8),
		bell: newFakeBell(),
	}
	native.PutUint16(p.mem[mbVersion:], mailboxVersion)
	native.PutUint16(p.mem[mbFlags:], capOOOC|capReadLen|capTMR)
	native.PutUint32(p.mem[mbCmdrOff:], p.off)
	native.PutUint32(p.mem[mbCmdrSize:], p.size)
	for id := ids; id > 0; id-- {
		p.free = append(p.free, uint16(id))
	}
	return p
}

func (p *producer) word(off int) *uint32 { return (*uint32)(unsafe.Pointer(&p.mem[off])) }

// start serves the ring with unit until the test ends. The channel gives what
// serve returned.
func (p *producer) start(unit lun.Unit) (*ring, <-chan error) {
	p.t.Helper()
	mb, err := openMailbox(p.mem)
	if err != nil {
		p.t.Fatal(err)
	}
	r, err := newRing(mb, p.bell, unit, &lun.Nexus{Name: "test"})
	if err != nil {
		p.t.Fatal(err)
	}
	done := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		done <- r.serve()
		close(ended)
	}()
	p.t.Cleanup(func() {
		r.stop()
		<-ended
	})
	return r, done
}

// room tells whether an entry of n bytes fits, with a pad before it if need be.
func (p *producer) room(n uint32) bool {
	used := (p.head + p.size - p.cleaned) % p.size
	need := n
	if p.size-p.head < n {
		need += p.size - p.head
	}
	return p.size-used-1 >= need
}

// place returns where an entry of n bytes goes, after a pad if need be.
func (p *producer) place(n uint32) []byte {
	if p.size-p.head < n {
		b := p.mem[p.off+p.head:]
		native.PutUint32(b, p.size-p.head|opPad)
		p.head = 0
	}
	b := p.mem[p.off+p.head : p.off+p.head+n]
	clear(b)
	p.head = (p.head + n) % p.size
	return b
}

// publish shows the entries to the other side without waking it.
func (p *producer) publish() { atomic.StoreUint32(p.word(mbCmdHead), p.head) }

func (p *producer) ring() {
	p.publish()
	p.bell.notify()
}

// putIovs cuts n bytes of an id's part of the data area into pieces.
func (p *producer) putIovs(b []byte, id uint16, n, pieces int) {
	base := uint64(p.off+p.size) + uint64(id-1)*prodDataSlot
	for i := range pieces {
		k := n / pieces
		if i == pieces-1 {
			k = n - k*(pieces-1)
		}
		native.PutUint64(b[i*iovecSize:], base)
		native.PutUint64(b[i*iovecSize+8:], uint64(k))
		base += uint64(k)
	}
}

func (p *producer) data(id uint16, n int) []byte {
	base := uint64(p.off+p.size) + uint64(id-1)*prodDataSlot
	return p.mem[base : base+uint64(n)]
}

// submit puts a command in the ring that moves n bytes in so many pieces. It
// returns false if there is no room or no id.
func (p *producer) submit(cdb []byte, n, pieces int, dataOut []byte) (uint16, bool) {
	base := max(cmdSize, reqIov+pieces*iovecSize)
	size := uint32(base+len(cdb)+7) &^ 7
	if len(p.free) == 0 || !p.room(size) {
		return 0, false
	}
	id := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	copy(p.data(id, n), dataOut)
	b := p.place(size)
	start := uint64(p.off) + uint64((p.head+p.size-size)%p.size)
	native.PutUint32(b[hdrLenOp:], size|opCmd)
	native.PutUint16(b[hdrCmdID:], id)
	native.PutUint32(b[reqIovCnt:], uint32(pieces))
	native.PutUint64(b[reqCdbOff:], start+uint64(base))
	p.putIovs(b[reqIov:], id, n, pieces)
	copy(b[base:], cdb)
	return id, true
}

func (p *producer) tmr(typ TMRType, ids ...uint16) {
	size := uint32(tmrCmdIDs+2*len(ids)+7) &^ 7
	if !p.room(size) {
		p.t.Fatal("no room for a TMR")
	}
	b := p.place(size)
	native.PutUint32(b[hdrLenOp:], size|opTMR)
	b[tmrType] = uint8(typ)
	native.PutUint32(b[tmrCmdCnt:], uint32(len(ids)))
	for i, id := range ids {
		native.PutUint16(b[tmrCmdIDs+2*i:], id)
	}
}

// completion is an answer as the kernel reads it.
type completion struct {
	id      uint16
	status  uint8
	uflags  uint8
	readLen uint32
	sense   [senseSize]byte
}

// reap takes all answers that are there, and frees their ids.
func (p *producer) reap(f func(completion)) (n int) {
	tail := atomic.LoadUint32(p.word(mbCmdTail))
	if tail >= p.size {
		p.t.Fatalf("cmd_tail is %d", tail)
	}
	for p.cleaned != tail {
		b := p.mem[p.off+p.cleaned:]
		lenOp := native.Uint32(b)
		p.cleaned = (p.cleaned + lenOp&^opMask) % p.size
		if lenOp&opMask != opCmd {
			continue
		}
		c := completion{
			id: native.Uint16(b[hdrCmdID:]), uflags: b[hdrUflags],
			status: b[rspStatus], readLen: native.Uint32(b[rspReadLen:]),
		}
		copy(c.sense[:], b[rspSense:])
		p.free = append(p.free, c.id)
		n++
		if f != nil {
			f(c)
		}
	}
	return n
}

// wait reaps until n answers are there.
func (p *producer) wait(n int) []completion {
	p.t.Helper()
	var out []completion
	for end := time.Now().Add(10 * time.Second); len(out) < n; {
		if p.reap(func(c completion) { out = append(out, c) }) == 0 {
			if time.Now().After(end) {
				p.t.Fatalf("%d answers of %d after 10 s", len(out), n)
			}
			p.bell.waitDoorbell(10 * time.Millisecond)
		}
	}
	return out
}

// run carries out one command.
func (p *producer) run(cdb []byte, n, pieces int, dataOut []byte) completion {
	p.t.Helper()
	if _, ok := p.submit(cdb, n, pieces, dataOut); !ok {
		p.t.Fatal("ring is full")
	}
	p.ring()
	return p.wait(1)[0]
}

// fakeBell is a UIO device: a read waits for events since the last one.
type fakeBell struct {
	mu       sync.Mutex
	cond     *sync.Cond
	events   int
	seen     int
	deadline bool
	writes   atomic.Int64
	doorbell chan struct{}
}

func newFakeBell() *fakeBell {
	b := &fakeBell{doorbell: make(chan struct{}, 1)}
	b.cond = sync.NewCond(&b.mu)
	return b
}

func (b *fakeBell) notify() {
	b.mu.Lock()
	b.events++
	b.mu.Unlock()
	b.cond.Signal()
}

func (b *fakeBell) Read(p []byte) (int, error) {
	if len(p) != 4 {
		return 0, fmt.Errorf("read of %d bytes: %w", len(p), os.ErrInvalid)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.events == b.seen && !b.deadline {
		b.cond.Wait()
	}
	if b.deadline {
		return 0, os.ErrDeadlineExceeded
	}
	b.seen = b.events
	native.PutUint32(p, uint32(b.events))
	return 4, nil
}

func (b *fakeBell) Write(p []byte) (int, error) {
	if !bytes.Equal(p, make([]byte, 4)) {
		return 0, os.ErrInvalid
	}
	b.writes.Add(1)
	select {
	case b.doorbell <- struct{}{}:
	default:
	}
	return 4, nil
}

func (b *fakeBell) SetReadDeadline(t time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deadline = !t.IsZero()
	b.cond.Broadcast()
	return nil
}

func (b *fakeBell) waitDoorbell(d time.Duration) {
	select {
	case <-b.doorbell:
	case <-time.After(d):
	}
}

func addr(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// alignedCopy copies b to memory that is aligned as a mapping is.
func alignedCopy(b []byte) []byte {
	words := make([]uint64, len(b)/8+1)
	m := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)[:len(b)]
	copy(m, b)
	return m
}
