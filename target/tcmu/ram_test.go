package tcmu_test

import (
	"encoding/binary"
	"sync"

	"lunlab/lun"
)

// ram is the least disk that Linux attaches, in memory, for tests of what
// carries the commands.
type ram struct {
	blocking bool

	mu     sync.RWMutex
	data   []byte
	events []lun.Event
	ops    map[byte]int
}

const ramBlock = 512

func newRAM(size int) *ram { return &ram{data: make([]byte, size), ops: map[byte]int{}} }

func (r *ram) Blocking() bool { return r.blocking }

func (r *ram) Notify(_ *lun.Nexus, e lun.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// extent returns the bytes that a READ or WRITE is for.
func extent(cdb []byte) (off, n uint64, write, ok bool) {
	switch cdb[0] {
	case 0x28, 0x2a:
		if len(cdb) >= 10 {
			off, n = uint64(binary.BigEndian.Uint32(cdb[2:])), uint64(binary.BigEndian.Uint16(cdb[7:]))
			ok = true
		}
	case 0x88, 0x8a:
		if len(cdb) >= 16 {
			off, n = binary.BigEndian.Uint64(cdb[2:]), uint64(binary.BigEndian.Uint32(cdb[10:]))
			ok = off < 1<<40
		}
	}
	return off * ramBlock, n * ramBlock, cdb[0]&0xf == 0xa, ok
}

func (r *ram) DataLength(cdb []byte) (out, in uint64) {
	_, n, write, ok := extent(cdb)
	switch {
	case !ok:
		return 0, 65536
	case write:
		return n, 0
	}
	return 0, n
}

func (r *ram) Execute(c *lun.Command) {
	r.mu.Lock()
	r.ops[c.CDB[0]]++
	r.mu.Unlock()
	if off, n, write, ok := extent(c.CDB); ok {
		if off+n > uint64(len(r.data)) {
			c.Fail(lun.Sense{Key: lun.IllegalRequest, Code: 0x2100})
			return
		}
		d := r.data[off : off+n]
		if write {
			r.mu.Lock()
			defer r.mu.Unlock()
			c.OutLen = n
			for _, v := range c.DataOut {
				d = d[copy(d, v):]
			}
			return
		}
		r.mu.RLock()
		defer r.mu.RUnlock()
		c.InLen = n
		for _, v := range c.DataIn {
			d = d[copy(v, d):]
		}
		return
	}
	blocks := uint64(len(r.data)/ramBlock - 1)
	switch op := c.CDB[0]; {
	case op == 0x12 && c.CDB[1]&1 == 0: // INQUIRY
		d := make([]byte, 36)
		d[2], d[3], d[4], d[7] = 6, 2, 31, 2
		copy(d[8:], "LUNLAB  TCMU TEST       0001")
		r.in(c, d)
	case op == 0x12 && c.CDB[2] == 0:
		r.in(c, []byte{0, 0, 0, 1, 0})
	case op == 0x25: // READ CAPACITY(10)
		d := binary.BigEndian.AppendUint32(nil, uint32(min(blocks, 0xffffffff)))
		r.in(c, binary.BigEndian.AppendUint32(d, ramBlock))
	case op == 0x9e: // READ CAPACITY(16)
		d := make([]byte, 32)
		binary.BigEndian.PutUint64(d, blocks)
		binary.BigEndian.PutUint32(d[8:], ramBlock)
		r.in(c, d)
	case op == 0x1a: // MODE SENSE(6)
		r.in(c, []byte{3, 0, 0, 0})
	case op == 0x00, op == 0x35, op == 0x1b:
	case op == 0xc0: // of this test: 10 bytes, and sense data beside them
		r.in(c, []byte("0123456789"))
		c.Fail(lun.Sense{Key: lun.RecoveredError, Code: 0x1701, HasInfo: true, Info: 0x1234})
	default:
		c.Fail(lun.Sense{Key: lun.IllegalRequest, Code: 0x2000})
	}
}

func (r *ram) in(c *lun.Command, d []byte) {
	// An allocation length: the CDBs of this test have it in these places.
	alloc := len(d)
	if c.CDB[0] == 0x12 {
		alloc = int(binary.BigEndian.Uint16(c.CDB[3:]))
	}
	d = d[:min(len(d), alloc)]
	c.InLen = uint64(len(d))
	for _, v := range c.DataIn {
		d = d[copy(v, d):]
	}
}
