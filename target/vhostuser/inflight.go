package vhostuser

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inflightInfo goes with GET_INFLIGHT_FD and SET_INFLIGHT_FD.
type inflightInfo struct {
	size, offset      uint64 // of the memory, in its file
	queues, queueSize uint16
}

const inflightInfoSize = 20

func (i *inflightInfo) decode(b []byte) error {
	if err := sized(b, inflightInfoSize); err != nil {
		return err
	}
	i.size, i.offset = le.Uint64(b), le.Uint64(b[8:])
	i.queues, i.queueSize = le.Uint16(b[16:]), le.Uint16(b[18:])
	if i.queues == 0 || i.queues > firstRequests+MaxQueues || i.queueSize == 0 || i.queueSize > maxRingSize {
		return fmt.Errorf("%w: %d virtqueues of %d in flight", errMessage, i.queues, i.queueSize)
	}
	return nil
}

func (i inflightInfo) append(b []byte) []byte {
	b = le.AppendUint64(le.AppendUint64(b, i.size), i.offset)
	return le.AppendUint16(le.AppendUint16(b, i.queues), i.queueSize)
}

// What each virtqueue has in that memory, struct QueueRegionSplit of the protocol:
// a head (features, version, desc_num, last_batch_head, used_idx) and, for each
// descriptor, whether the request that begins with it is in flight and a count
// that says since when.
const (
	trackHead  = 16
	trackEntry = 16
)

// stride is how much each virtqueue takes.
func (i inflightInfo) stride() int { return (trackHead + trackEntry*int(i.queueSize) + 63) &^ 63 }

// inflight is memory that the front end keeps over a restart of ours. It says which
// requests were taken and not given back, so that none is lost.
type inflight struct {
	inflightInfo
	mapping []byte
}

const inflightSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// newInflight makes the memory, and a file descriptor of it for the front end.
func newInflight(queues, queueSize uint16) (i inflightInfo, fd int, err error) {
	i = inflightInfo{queues: queues, queueSize: queueSize}
	i.size = uint64(int(queues) * i.stride())
	if fd, err = unix.MemfdCreate("lunlab-inflight", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		return i, -1, fmt.Errorf("memory for what is in flight: %w", err)
	}
	if err = unix.Ftruncate(fd, int64(i.size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, inflightSeals)
	}
	if err != nil {
		unix.Close(fd)
		return i, -1, fmt.Errorf("memory for what is in flight: %w", err)
	}
	return i, fd, nil
}

// openInflight maps the memory. Only such as newInflight made will do.
func openInflight(i inflightInfo, fd int) (*inflight, error) {
	r, err := mapRegion(memoryRegion{size: i.size, offset: i.offset}, fd)
	if err != nil {
		return nil, err
	}
	if !r.lasting || i.offset%8 != 0 || i.size < uint64(int(i.queues)*i.stride()) {
		r.drop()
		return nil, fmt.Errorf("%#x bytes at %#x are not memory for %d virtqueues of %d", i.size, i.offset, i.queues, i.queueSize)
	}
	return &inflight{i, r.mapping}, nil
}

func (f *inflight) close() error { return unix.Munmap(f.mapping) }

// queue is the part of virtqueue n, nil if there is none.
func (f *inflight) queue(n int) *inflightQueue {
	if n >= int(f.queues) {
		return nil
	}
	return &inflightQueue{b: f.mapping[int(f.offset)+n*f.stride():][:f.stride()], num: uint32(f.queueSize)}
}

// inflightQueue is the part of a virtqueue. Its methods do nothing for nil. Each
// store is seen after those before it, whenever the process ends.
type inflightQueue struct {
	b       []byte
	num     uint32
	counter uint64
}

func (q *inflightQueue) word(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&q.b[off])) }

func (q *inflightQueue) flag(head uint16) *uint32 {
	return q.word(trackHead + trackEntry*uint32(head))
}

func (q *inflightQueue) count(head uint16) *uint64 {
	return (*uint64)(unsafe.Pointer(&q.b[trackHead+trackEntry*uint32(head)+8]))
}

// setHead stores last_batch_head and used_idx.
func (q *inflightQueue) setHead(last, used uint16) {
	atomic.StoreUint32(q.word(12), uint32(last)|uint32(used)<<16)
}

func (q *inflightQueue) head() (last, used uint16) {
	w := atomic.LoadUint32(q.word(12))
	return uint16(w), uint16(w >> 16)
}

// begin says that the request at head was taken.
func (q *inflightQueue) begin(head uint16) {
	if q == nil || uint32(head) >= q.num {
		return
	}
	q.counter++
	atomic.StoreUint64(q.count(head), q.counter)
	atomic.StoreUint32(q.flag(head), 1)
}

// ending says that the request at head is the next to be put into the used ring.
func (q *inflightQueue) ending(head uint16) {
	if q == nil || uint32(head) >= q.num {
		return
	}
	_, used := q.head()
	q.setHead(head, used)
}

// ended says that it is there, and what the used ring's index is by now.
func (q *inflightQueue) ended(head, used uint16) {
	if q == nil || uint32(head) >= q.num {
		return
	}
	atomic.StoreUint32(q.flag(head), 0)
	q.setHead(head, used)
}

// recover returns the heads of what is in flight, oldest first. num and used are
// the virtqueue's.
func (q *inflightQueue) recover(num uint32, used uint16) []uint16 {
	if le.Uint16(q.b[8:]) == 0 {
		le.PutUint16(q.b[8:], 1) // version
		le.PutUint16(q.b[10:], uint16(q.num))
		q.setHead(0, used)
		return nil
	}
	if last, was := q.head(); was != used {
		// The used ring has the last one already.
		if uint32(last) < q.num {
			atomic.StoreUint32(q.flag(last), 0)
		}
		q.setHead(last, used)
	}
	var heads []uint16
	for head := range min(num, q.num) {
		if atomic.LoadUint32(q.flag(uint16(head)))&0xff != 0 {
			heads = append(heads, uint16(head))
			q.counter = max(q.counter, atomic.LoadUint64(q.count(uint16(head))))
		}
	}
	slices.SortFunc(heads, func(a, b uint16) int {
		return cmp.Compare(atomic.LoadUint64(q.count(a)), atomic.LoadUint64(q.count(b)))
	})
	return heads
}
