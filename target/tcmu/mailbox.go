package tcmu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"
)

var native = binary.NativeEndian

// ErrRing is what a ring that breaks the protocol fails with.
var ErrRing = errors.New("malformed ring")

func ringErr(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRing, fmt.Sprintf(format, args...))
}

// maxCDB is the longest command descriptor block (SPC-5 4.2.3).
const maxCDB = 260

// mailbox is the mapping that is shared with the kernel: the mailbox itself,
// the command ring, and the data area behind it. Nothing in it is trusted:
// each field is read once, and checked before it is used.
type mailbox struct {
	mem     []byte
	flags   uint16
	off     uint32 // cmdr_off
	size    uint32 // cmdr_size
	dataOff uint64 // where the data area starts
}

// openMailbox checks the mailbox at the start of mem. mem has to be aligned to
// 8 bytes, as a mapping is.
func openMailbox(mem []byte) (*mailbox, error) {
	if len(mem) < mbSize {
		return nil, ringErr("mapping of %d bytes has no room for a mailbox", len(mem))
	}
	if uintptr(unsafe.Pointer(&mem[0]))%8 != 0 {
		return nil, ringErr("mapping is not aligned")
	}
	if v := native.Uint16(mem[mbVersion:]); v != mailboxVersion {
		return nil, fmt.Errorf("mailbox version %d is not supported, only %d is", v, mailboxVersion)
	}
	m := &mailbox{
		mem:   mem,
		flags: native.Uint16(mem[mbFlags:]),
		off:   native.Uint32(mem[mbCmdrOff:]),
		size:  native.Uint32(mem[mbCmdrSize:]),
	}
	m.dataOff = uint64(m.off) + uint64(m.size)
	switch {
	case m.flags&capOOOC == 0:
		return nil, fmt.Errorf("the kernel's TCMU has no out-of-order completion (mailbox flags %#x)", m.flags)
	case m.off < mbSize || m.off%opAlign != 0:
		return nil, ringErr("cmdr_off is %d", m.off)
	case m.size < cmdSize || m.size%opAlign != 0:
		return nil, ringErr("cmdr_size is %d", m.size)
	case m.dataOff > uint64(len(mem)):
		return nil, ringErr("ring of %d bytes at %d passes the mapping of %d", m.size, m.off, len(mem))
	}
	return m, nil
}

func (m *mailbox) word(off int) *uint32 { return (*uint32)(unsafe.Pointer(&m.mem[off])) }

// head loads cmd_head, with all that the kernel wrote before it.
func (m *mailbox) head() (uint32, error) {
	h := atomic.LoadUint32(m.word(mbCmdHead))
	if h >= m.size || h%opAlign != 0 {
		return 0, ringErr("cmd_head is %d in a ring of %d", h, m.size)
	}
	return h, nil
}

func (m *mailbox) tail() uint32 { return atomic.LoadUint32(m.word(mbCmdTail)) }

// setTail stores cmd_tail behind all that was written before it.
func (m *mailbox) setTail(t uint32) { atomic.StoreUint32(m.word(mbCmdTail), t) }

// entry is a ring entry, copied out of the ring: the kernel may write to an
// entry's place as soon as as many were completed, whichever they were.
type entry struct {
	pos uint32 // from the ring's start
	len uint32
	op  uint8
	id  uint16 // of a command

	cdb    []byte // in cdbBuf
	cdbBuf [maxCDB]byte

	// iov holds the command's buffers, slices of the data area, and then those
	// for data-in of a bidirectional command, from iov[bidi] on.
	iov  [][]byte
	bidi int

	tmr TMRType
	ids []uint16 // the commands that a TMR takes with it
}

// read decodes the entry at pos, of which the ring holds all up to head.
func (m *mailbox) read(pos, head uint32, e *entry) error {
	left := m.size - pos // entries don't wrap around
	if head > pos {
		left = head - pos
	}
	if left < hdrSize {
		return ringErr("%d bytes at %d are too few for a header", left, pos)
	}
	start := uint64(m.off) + uint64(pos)
	lenOp := native.Uint32(m.mem[start+hdrLenOp:])
	e.pos, e.len, e.op = pos, lenOp&^opMask, uint8(lenOp&opMask)
	e.cdb, e.iov, e.ids, e.bidi = nil, e.iov[:0], e.ids[:0], 0
	if e.len < hdrSize || e.len > left {
		return ringErr("entry at %d is %d bytes long, with %d there", pos, e.len, left)
	}
	b := m.mem[start : start+uint64(e.len)]
	switch e.op {
	case opCmd:
		return m.readCmd(b, start, e)
	case opTMR:
		return readTMR(b, e)
	}
	return nil
}

func (m *mailbox) readCmd(b []byte, start uint64, e *entry) error {
	if len(b) < cmdSize {
		return ringErr("command at %d is %d bytes long", e.pos, len(b))
	}
	e.id = native.Uint16(b[hdrCmdID:])
	cnt, bidi := native.Uint32(b[reqIovCnt:]), native.Uint32(b[reqIovBidiCnt:])
	n := uint64(cnt) + uint64(bidi) + uint64(native.Uint32(b[reqIovDifCnt:]))
	if n > uint64(len(b)-reqIov)/iovecSize {
		return ringErr("command at %d has %d buffers in %d bytes", e.pos, n, len(b))
	}
	cdbOff := native.Uint64(b[reqCdbOff:])
	if low := start + max(cmdSize, reqIov+n*iovecSize); cdbOff < low || cdbOff > start+uint64(len(b))-6 {
		return ringErr("command at %d has its CDB at %d, and lies at %d to %d", e.pos, cdbOff, start, start+uint64(len(b)))
	}
	e.cdb = e.cdbBuf[:copy(e.cdbBuf[:], b[cdbOff-start:])]
	e.bidi = int(cnt)
	for i := range int(cnt) + int(bidi) {
		v := b[reqIov+i*iovecSize:]
		base, length := native.Uint64(v), native.Uint64(v[8:])
		if end := uint64(len(m.mem)); base < m.dataOff || base > end || length > end-base {
			return ringErr("command at %d has a buffer of %d bytes at %d, and the data area is %d to %d", e.pos, length, base, m.dataOff, end)
		}
		e.iov = append(e.iov, m.mem[base:base+length:base+length])
	}
	return nil
}

func readTMR(b []byte, e *entry) error {
	if len(b) < tmrCmdIDs {
		return ringErr("TMR at %d is %d bytes long", e.pos, len(b))
	}
	e.tmr = TMRType(b[tmrType])
	n := native.Uint32(b[tmrCmdCnt:])
	if uint64(n) > uint64(len(b)-tmrCmdIDs)/2 {
		return ringErr("TMR at %d names %d commands in %d bytes", e.pos, n, len(b))
	}
	for i := range int(n) {
		e.ids = append(e.ids, native.Uint16(b[tmrCmdIDs+2*i:]))
	}
	return nil
}

// markUnknown tells the kernel that the entry's operation isn't one that we
// know.
func (m *mailbox) markUnknown(pos uint32) {
	m.mem[uint64(m.off)+uint64(pos)+hdrUflags] |= uflagUnknownOp
}

// answer is what goes into a ring entry for a completed command.
type answer struct {
	id      uint16
	status  uint8
	readLen uint32 // 0: all of it
	sense   []byte
}

// write stores a at pos, in place of a command that may be another's.
func (m *mailbox) write(pos uint32, a answer) {
	start := uint64(m.off) + uint64(pos)
	b := m.mem[start : start+cmdSize]
	native.PutUint16(b[hdrCmdID:], a.id)
	b[hdrUflags] = 0
	clear(b[hdrSize:])
	b[rspStatus] = a.status
	if a.readLen > 0 {
		b[hdrUflags] = uflagReadLen
		native.PutUint32(b[rspReadLen:], a.readLen)
	}
	copy(b[rspSense:], a.sense)
}
