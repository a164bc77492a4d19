package tcmu

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lunlab/lun"
)

// TestMalformed breaks one thing in a ring with one command. Serving it has to
// end with an error that says what.
func TestMalformed(t *testing.T) {
	far := uint64(1) << 63
	for _, tt := range []struct {
		name string
		want string
		do   func(p *producer, e []byte)
	}{
		{"entry longer than what is there", "long", func(p *producer, e []byte) { native.PutUint32(e, 1<<20|opCmd) }},
		{"entry of no length", "long", func(p *producer, e []byte) { native.PutUint32(e, opCmd) }},
		{"command too short", "long", func(p *producer, e []byte) { native.PutUint32(e, 104|opCmd) }},
		{"pad past the head", "long", func(p *producer, e []byte) { native.PutUint32(e, 4000|opPad) }},
		{"TMR too short", "long", func(p *producer, e []byte) { native.PutUint32(e, 24|opTMR) }},
		{"TMR with too many ids", "names", func(p *producer, e []byte) {
			native.PutUint32(e, 128|opTMR)
			native.PutUint32(e[tmrCmdCnt:], 1<<31)
		}},
		{"iov_cnt", "buffers", func(p *producer, e []byte) { native.PutUint32(e[reqIovCnt:], 1<<31) }},
		{"iov counts that overflow", "buffers", func(p *producer, e []byte) {
			for _, o := range []int{reqIovCnt, reqIovBidiCnt, reqIovDifCnt} {
				native.PutUint32(e[o:], 1<<32-1)
			}
		}},
		{"buffer in the mailbox", "data area", func(p *producer, e []byte) { native.PutUint64(e[reqIov:], 0) }},
		{"buffer in the ring", "data area", func(p *producer, e []byte) { native.PutUint64(e[reqIov:], prodOff+8) }},
		{"buffer past the mapping", "data area", func(p *producer, e []byte) { native.PutUint64(e[reqIov:], uint64(len(p.mem))+1) }},
		{"buffer that reaches past the mapping", "data area", func(p *producer, e []byte) { native.PutUint64(e[reqIov+8:], uint64(len(p.mem))) }},
		{"buffer that wraps around", "data area", func(p *producer, e []byte) { native.PutUint64(e[reqIov+8:], 1<<64-1) }},
		{"CDB before the entry", "CDB", func(p *producer, e []byte) { native.PutUint64(e[reqCdbOff:], 0) }},
		{"CDB in the answer's place", "CDB", func(p *producer, e []byte) { native.PutUint64(e[reqCdbOff:], prodOff+64) }},
		{"CDB behind the entry", "CDB", func(p *producer, e []byte) { native.PutUint64(e[reqCdbOff:], prodOff+2048) }},
		{"CDB nowhere", "CDB", func(p *producer, e []byte) { native.PutUint64(e[reqCdbOff:], far) }},
		{"head past the ring", "cmd_head", func(p *producer, e []byte) { p.head = p.size }},
		{"head not aligned", "cmd_head", func(p *producer, e []byte) { p.head++ }},
		{"tail moved by another", "reset", func(p *producer, e []byte) { atomic.StoreUint32(p.word(mbCmdTail), 8) }},
		{"id in use", "in use", func(p *producer, e []byte) {
			p.submit(cdb(0, 0), 0, 0, nil)
			native.PutUint16(p.mem[prodOff+128+hdrCmdID:], native.Uint16(e[hdrCmdID:]))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newProducer(t, 4096, 4)
			hold := make(chan struct{})
			t.Cleanup(func() { close(hold) })
			_, done := p.start(&testUnit{blocking: true, execute: func(c *lun.Command) {
				select {
				case <-hold:
				case <-c.Cancel:
				}
			}})
			p.submit(cdb(0x28, 512), 512, 1, nil)
			tt.do(p, p.mem[prodOff:])
			tail := atomic.LoadUint32(p.word(mbCmdTail))
			p.ring()
			select {
			case err := <-done:
				if !errors.Is(err, ErrRing) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error %q, want a malformed ring with %q", err, tt.want)
				}
			case <-time.After(5 * time.Second):
				t.Fatal("the ring is still served")
			}
			if now := atomic.LoadUint32(p.word(mbCmdTail)); now != tail {
				t.Errorf("cmd_tail of a broken ring went from %d to %d", tail, now)
			}
		})
	}
}

func TestMalformedMailbox(t *testing.T) {
	for _, tt := range []struct {
		name string
		want string
		do   func(p *producer)
	}{
		{"version 1", "version 1", func(p *producer) { p.mem[mbVersion] = 1 }},
		{"no out-of-order completion", "out-of-order", func(p *producer) { p.mem[mbFlags] = capReadLen }},
		{"ring in the mailbox", "cmdr_off", func(p *producer) { native.PutUint32(p.mem[mbCmdrOff:], 64) }},
		{"ring not aligned", "cmdr_off", func(p *producer) { native.PutUint32(p.mem[mbCmdrOff:], 132) }},
		{"no ring", "cmdr_size", func(p *producer) { native.PutUint32(p.mem[mbCmdrSize:], 0) }},
		{"ring past the mapping", "passes", func(p *producer) { native.PutUint32(p.mem[mbCmdrSize:], 1<<32-8) }},
		{"no room", "no room", func(p *producer) { p.mem = p.mem[:67] }},
	} {
		p := newProducer(t, 4096, 4)
		tt.do(p)
		if _, err := openMailbox(p.mem); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
		}
	}
	p := newProducer(t, 4096, 4)
	native.PutUint32(p.mem[mbCmdTail:], 4096)
	mb, err := openMailbox(p.mem)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newRing(mb, p.bell, &testUnit{}, nil); !errors.Is(err, ErrRing) {
		t.Errorf("tail past the ring: error %v", err)
	}
}

// FuzzRing reads a mapping of any bytes. Nothing of it may reach outside the
// mapping, and buffers not outside the data area.
func FuzzRing(f *testing.F) {
	// Small, as the fuzzer takes long to minimize large ones.
	p := newProducer(f, 352, 4)
	p.submit(cdb(0x28, 64), 64, 3, nil)
	p.tmr(TMRLUNReset, 1, 2)
	p.submit(cdb(0x2a, 64), 64, 1, nil)
	p.publish()
	f.Add(p.mem[:prodOff+352+64], uint32(0))
	f.Fuzz(func(t *testing.T, image []byte, pos uint32) {
		mem := alignedCopy(image)
		m, err := openMailbox(mem)
		if err != nil {
			return
		}
		head, err := m.head()
		if err != nil {
			return
		}
		pos = pos % m.size &^ 7
		serveImage(t, image)
		var e entry
		for range 1000 {
			if pos == head || m.read(pos, head, &e) != nil {
				break
			}
			if e.len < hdrSize || pos+e.len > m.size {
				t.Fatalf("entry of %d bytes at %d in a ring of %d", e.len, pos, m.size)
			}
			for _, v := range e.iov {
				if len(v) > len(mem) {
					t.Fatalf("a buffer of %d bytes", len(v))
				}
				if len(v) > 0 {
					at := uint64(addr(v) - addr(mem))
					if at < m.dataOff || at+uint64(len(v)) > uint64(len(mem)) {
						t.Fatalf("a buffer at %d, and the data area is %d to %d", at, m.dataOff, len(mem))
					}
					v[0]++
				}
			}
			switch e.op {
			case opCmd:
				if len(e.cdb) < 6 || len(e.cdb) > maxCDB {
					t.Fatalf("a CDB of %d bytes", len(e.cdb))
				}
				if e.bidi > len(e.iov) {
					t.Fatalf("%d buffers, bidirectional from %d on", len(e.iov), e.bidi)
				}
				m.write(pos, answer{id: e.id, status: 2, readLen: 1, sense: make([]byte, senseSize)})
			case opTMR, opPad:
			default:
				m.markUnknown(pos)
			}
			pos = (pos + e.len) % m.size
		}
	})
}

// serveImage serves what lies in the image, as far as it makes sense.
func serveImage(t *testing.T, image []byte) {
	m, err := openMailbox(alignedCopy(image))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	u := &testUnit{execute: func(c *lun.Command) {
		n++
		c.InLen = fill(c.DataIn, bytes.Repeat([]byte{0xa5}, len(c.CDB)))
		if c.CDB[1]&1 != 0 {
			c.Fail(lun.Sense{Key: lun.IllegalRequest})
		}
	}}
	r, err := newRing(m, newFakeBell(), u, &lun.Nexus{})
	if err != nil {
		return
	}
	entries, err := r.poll()
	if s := r.snapshot(); int(s.Commands) != n || s.InFlight != 0 || n > entries {
		t.Errorf("%d commands of %d entries, %v: %+v", n, entries, err, s)
	}
	if err == nil && (r.slots.len() != 0 || m.tail() != r.next) {
		t.Errorf("%d entries were not given back: cmd_tail is %d, and %d was read", r.slots.len(), m.tail(), r.next)
	}
}
