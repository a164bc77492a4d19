package lun_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"lunlab/lun"
)

// logPage returns the parameters of a log page by code.
func (h *host) logPage(page, sub, control byte) map[uint16][]byte {
	h.t.Helper()
	b := h.run([]byte{0x4d, 0, control<<6 | page, sub, 0, 0, 0, 0xff, 0xff, 0}, nil, 65535).good().data
	first := page
	if sub != 0 {
		first |= 0x40
	}
	if b[0] != first || b[1] != sub || int(binary.BigEndian.Uint16(b[2:]))+4 != len(b) {
		h.t.Fatalf("log page %02x/%02x begins with %x and has %d bytes", page, sub, b[:4], len(b))
	}
	params := map[uint16][]byte{}
	for b = b[4:]; len(b) > 0; {
		n := 4 + int(b[3])
		params[binary.BigEndian.Uint16(b)] = b[4:n]
		b = b[n:]
	}
	return params
}

func wantCounts(t *testing.T, what string, got []byte, want ...uint64) {
	t.Helper()
	for i, w := range want {
		if v := binary.BigEndian.Uint64(got[8*i:]); v != w {
			t.Errorf("%s: count %d is %d, want %d", what, i, v, w)
		}
	}
}

func TestLogSense(t *testing.T) {
	s := &broken{Store: mustMem(t, 1<<20)}
	h := hostOf(t, s, lun.DiskOptions{})
	o := h.other("b")
	h.do("4d 00 40 00 00 0000 00ff 00", nil, 255).is("0000000c 00 02 03 05 0d 0e 10 15 18 19 1a 2f")
	sub := h.do("4d 00 40 ff 00 0000 00ff 00", nil, 255).good().data
	if !bytes.Equal(sub[:8], []byte{0x40, 0xff, 0, byte(len(sub) - 4), 0, 0, 0, 0xff}) {
		t.Errorf("supported subpages begin with %x", sub[:8])
	}
	for list := sub[8:]; len(list) > 0; list = list[2:] {
		if len(h.logPage(list[0], list[1], 1)) == 0 {
			t.Errorf("page %02x/%02x has no parameters", list[0], list[1])
		}
	}
	h.run(transfer(0x2a, 0, 8, 0), make([]byte, 4096), 0).good()
	h.run(transfer(0x28, 0, 3, 0), nil, 1536).good()
	h.run(cat([]byte{0x28, 0}, be(4, 0), []byte{5}, be(2, 1), []byte{0}), nil, 512).good() // group 5
	h.run(transfer(0x2f, 0, 2, 0), nil, 0).good()
	s.fail(errors.New("odd"))
	h.run(transfer(0x28, 0, 3, 0), nil, 1536).fails(lun.HardwareError, lun.ASCInternalTargetFailure)
	s.fail(nil)
	wantCounts(t, "statistics", h.logPage(0x19, 0, 1)[1], 2, 1, 8, 4)
	wantCounts(t, "group 5", h.logPage(0x19, 5, 1)[1], 1, 0, 0, 1)
	wantCounts(t, "bytes written", h.logPage(0x02, 0, 1)[5], 4096)
	wantCounts(t, "bytes read", h.logPage(0x03, 0, 1)[5], 2048)
	wantCounts(t, "read errors", h.logPage(0x03, 0, 1)[6], 1)
	wantCounts(t, "bytes verified", h.logPage(0x05, 0, 1)[5], 1024)
	wantCounts(t, "default of bytes read", h.logPage(0x03, 0, 3)[5], 0)
	wantCounts(t, "threshold of bytes read", h.logPage(0x03, 0, 0)[5], 1<<64-1)
	if b := h.do("4d 00 43 00 00 0006 00ff 00", nil, 255).good().data; len(b) != 4+12 || b[5] != 6 {
		t.Errorf("from parameter 6 on: %x", b)
	}
	h.do("4d 00 43 00 00 0007 00ff 00", nil, 255).field(5, 7)
	h.do("4d 00 44 00 00 0000 00ff 00", nil, 255).field(2, 5)
	h.do("4d 00 43 01 00 0000 00ff 00", nil, 255).field(3, 7)
	h.do("4d 01 43 00 00 0000 00ff 00", nil, 255).field(1, 0)
	// Reset.
	h.do("4c 00 c0 00 000000 0000 00", nil, 0).good()
	wantCounts(t, "bytes read", h.logPage(0x03, 0, 1)[5], 2048)
	h.do("4c 02 c0 00 000000 0000 00", nil, 0).good()
	wantCounts(t, "bytes read after a reset", h.logPage(0x03, 0, 1)[5], 0)
	wantCounts(t, "group 5 after a reset", h.logPage(0x19, 5, 1)[1], 0)
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCLogParametersChanged)
	// One page, or all its subpages: the others keep their counts.
	h.run(transfer(0x2a, 0, 8, 0), make([]byte, 4096), 0).good()
	h.run(cat([]byte{0x28, 0}, be(4, 0), []byte{5}, be(2, 1), []byte{0}), nil, 512).good()
	h.do("4c 02 c2 00 000000 0000 00", nil, 0).good()
	wantCounts(t, "bytes written after a reset of them", h.logPage(0x02, 0, 1)[5], 0)
	wantCounts(t, "bytes read after that", h.logPage(0x03, 0, 1)[5], 512)
	wantCounts(t, "statistics after that", h.logPage(0x19, 0, 1)[1], 1, 1, 8, 1)
	h.do("4c 02 d9 00 000000 0000 00", nil, 0).good()
	wantCounts(t, "statistics after a reset of them", h.logPage(0x19, 0, 1)[1], 0, 0, 0, 0)
	wantCounts(t, "group 5 after that", h.logPage(0x19, 5, 1)[1], 1)
	h.do("4c 02 d9 ff 000000 0000 00", nil, 0).good()
	wantCounts(t, "group 5 after a reset of all groups", h.logPage(0x19, 5, 1)[1], 0)
	wantCounts(t, "bytes read after that", h.logPage(0x03, 0, 1)[5], 512)
	h.do("4c 02 c0 ff 000000 0000 00", nil, 0).good()
	wantCounts(t, "bytes read after a reset of all", h.logPage(0x03, 0, 1)[5], 0)
	h.do("4c 02 c0 05 000000 0000 00", nil, 0).field(2, 5)
	h.do("4c 02 c2 05 000000 0000 00", nil, 0).field(3, 7)
	h.do("4c 02 c0 00 000000 0004 00", make([]byte, 4), 0).field(7, 7)
	h.do("4c 02 c7 00 000000 0000 00", nil, 0).field(2, 5)
}

// Each command counts on the pages of what it does, and an error on that of what
// failed.
func TestErrorCounts(t *testing.T) {
	const bad = "3f 40 00000064 00 0000 00" // block 100
	written, read, verified := byte(0x02), byte(0x03), byte(0x05)
	block := pattern(512, 1)
	for _, c := range []struct {
		name        string
		cdb         []byte
		out         []byte
		received    uint64
		written     uint64 // bytes
		verified    uint64 // bytes
		failed      byte   // the page that counts a bad block
		storeFailed byte   // that of a store that fails
	}{
		{"VERIFY", transfer(0x2f, 100, 1, 0), nil, 0, 0, 512, verified, verified},
		{"VERIFY, BYTCHK", transfer(0x2f, 100, 1, 2), make([]byte, 512), 0, 0, 512, verified, verified},
		{"WRITE AND VERIFY", transfer(0x2e, 100, 1, 0), block, 1, 512, 512, 0, written},
		{"WRITE SAME", transfer(0x41, 100, 4, 0), block, 1, 4 * 512, 0, 0, written},
		{"ORWRITE", transfer(0x8b, 100, 1, 0), block, 1, 512, 0, read, read},
		{"COMPARE AND WRITE", cat([]byte{0x89, 0}, be(8, 100), []byte{0, 0, 0, 1, 0, 0}), make([]byte, 1024), 2, 512, 0, read, read},
		{"READ", transfer(0x28, 100, 1, 0), nil, 0, 0, 0, read, read},
		{"WRITE", transfer(0x2a, 100, 1, 0), block, 1, 512, 0, 0, written},
	} {
		s := &broken{Store: mustMem(t, 1<<20)}
		h := hostOf(t, s, lun.DiskOptions{})
		h.run(c.cdb, c.out, 512).good()
		p := h.logPage(0x19, 0, 1)[1]
		if got := binary.BigEndian.Uint64(p[16:]); got != c.received || (binary.BigEndian.Uint64(p[8:]) == 1) != (c.received > 0) {
			t.Errorf("%s: %d blocks received, want %d: %x", c.name, got, c.received, p)
		}
		wantCounts(t, c.name+": bytes written", h.logPage(written, 0, 1)[5], c.written)
		wantCounts(t, c.name+": bytes verified", h.logPage(verified, 0, 1)[5], c.verified)
		errorsOn := func(what string, page byte) {
			t.Helper()
			for _, code := range []byte{written, read, verified} {
				want := uint64(0)
				if code == page {
					want = 1
				}
				wantCounts(t, c.name+": "+what, h.logPage(code, 0, 1)[6], want)
			}
			h.do("4c 02 c0 00 000000 0000 00", nil, 0).good()
		}
		errorsOn("no errors", 0)
		h.do(bad, nil, 0).good()
		h.run(c.cdb, c.out, 512)
		errorsOn("a bad block", c.failed)
		h.run(transfer(0x2a, 100, 1, 0), make([]byte, 512), 0).good()
		s.fail(errors.New("odd"))
		h.run(c.cdb, c.out, 512).fails(lun.HardwareError, lun.ASCInternalTargetFailure)
		errorsOn("a store that fails", c.storeFailed)
	}
}

func TestSelfTest(t *testing.T) {
	s := &broken{Store: mustMem(t, 1<<20)}
	h := hostOf(t, s, lun.DiskOptions{})
	h.do("1d 04 00 0000 00", nil, 0).good()
	h.do("1d 00 00 0000 00", nil, 0).good()
	h.do("1d 20 00 0000 00", nil, 0).good() // background short
	h.do("1d c0 00 0000 00", nil, 0).good() // foreground extended
	s.fail(errors.New("odd"))
	h.do("1d a0 00 0000 00", nil, 0).fails(lun.HardwareError, lun.ASCSelfTestFailed)
	s.fail(nil)
	log := h.logPage(0x10, 0, 1)
	if len(log) != 20 || log[1][0] != 5<<5|7 || log[2][0] != 6<<5 || log[3][0] != 1<<5 || log[4][0] != 0 {
		t.Errorf("self-test results %x", log)
	}
	if want := []byte{4, 0x44, 0}; !bytes.Equal(log[1][12:15], want) {
		t.Errorf("sense of the failed one is %x, want %x", log[1][12:15], want)
	}
	h.do("1d 24 00 0000 00", nil, 0).field(1, 7)
	h.do("1d 80 00 0000 00", nil, 0).field(1, 7)
	// A page that asks for the list of pages.
	h.do("1d 10 00 0004 00", make([]byte, 4), 0).good()
	h.do("1d 10 00 0001 00", make([]byte, 1), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("1d 10 00 0005 00", make([]byte, 5), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("1d 10 00 0004 00", make([]byte, 3), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("1d 10 00 0004 00", []byte{0x40, 0, 0, 0}, 0).fails(lun.IllegalRequest, lun.ASCInvalidFieldInParameterList)
	h.do("1d 10 00 0004 00", []byte{0, 0, 0, 1}, 0).fails(lun.IllegalRequest, lun.ASCInvalidFieldInParameterList)
	h.do("1d 00 00 0004 00", make([]byte, 4), 0).field(1, 4)
	h.do("1d 34 00 0004 00", make([]byte, 4), 0).field(3, 7)
	h.do("1c 01 00 00ff 00", nil, 255).is("00000001 00")
	h.do("1c 01 01 00ff 00", nil, 255).field(2, 7)
}

func TestBuffers(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	o := h.other("b")
	h.do("3c 03 00 000000 000004 00", nil, 4).is("00010000")
	h.do("3c 0b 00 000000 000004 00", nil, 4).is("00001000")
	h.do("3c 0a 00 000000 000004 00", nil, 4).fails(lun.IllegalRequest, lun.ASCCommandSequenceError)
	h.do("3b 0a 00 000000 000004 00", []byte{1, 2, 3, 4}, 0).good()
	o.do("3c 0a 00 000000 0000ff 00", nil, 255).is("01020304")
	h.do("3b 02 00 00fffe 000002 00", []byte{5, 6}, 0).good()
	o.do("3c 02 00 00fffd 0000ff 00", nil, 255).is("000506")
	h.do("3b 02 00 000000 000002 00", []byte{7, 8}, 0).good()
	o.do("3c 00 00 000000 000007 00", nil, 255).is("00010000 070800")
	h.do("3c 00 00 000001 000007 00", nil, 255).field(3, 7)
	h.do("3b 02 00 00ffff 000002 00", []byte{5, 6}, 0).field(6, 7)
	h.do("3b 02 00 010001 000000 00", nil, 0).field(3, 7)
	h.do("3b 02 01 000000 000002 00", []byte{5, 6}, 0).field(2, 7)
	h.do("3b 02 00 000000 000002 00", []byte{5}, 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("3b 1f 00 000000 000002 00", []byte{5, 6}, 0).field(1, 4)
	h.do("3c 1f 00 000000 000002 00", nil, 2).field(1, 4)
	h.do("3c 02 00 010001 000002 00", nil, 2).field(3, 7)
	for _, mode := range []string{"04", "05", "06", "07"} {
		h.do("3b "+mode+" 00 000000 000002 00", []byte{5, 6}, 0).good()
		o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCMicrocodeChanged)
	}
	h.do("3b 0f 00 000000 000000 00", nil, 0).fails(lun.IllegalRequest, lun.ASCCommandSequenceError)
	h.do("3b 0e 00 000000 000002 00", []byte{5, 6}, 0).good()
	o.do("00 00 00 00 00 00", nil, 0).good()
	h.do("3b 0f 00 000000 000000 00", nil, 0).good()
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCMicrocodeChanged)
}

func TestDefects(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	h.do("37 00 18 00000000 00ff 00", nil, 255).is("00180000")
	h.do("37 00 1b 00000000 00ff 00", nil, 255).is("001b0000")
	h.do("37 00 1f 00000000 00ff 00", nil, 255).field(2, 2)
	h.do("b7 08 00000000 000000ff 00 00", nil, 255).is("00080000 00000000")
	h.do("b7 07 00000000 000000ff 00 00", nil, 255).field(1, 2)
	// A format that isn't the disk's: another one, and sense data.
	for cdb, want := range map[string]string{"37 00 1d 00000000 00ff 00": "00180000", "b7 0c 00000000 000000ff 00 00": "00080000 00000000"} {
		a := h.do(cdb, nil, 255).fails(lun.RecoveredError, lun.ASCDefectListNotFound)
		if got := hex.EncodeToString(a.data); got != strings.ReplaceAll(want, " ", "") {
			t.Errorf("%s: %s, want %s", cdb, got, want)
		}
	}
}

func TestIdentifyingInformation(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	o := h.other("b")
	h.do("a3 05 0000 0000 000000ff 00 00", nil, 255).is("00000000")
	h.do("a4 06 0000 0000 00000003 00 00", []byte("abc"), 0).good()
	h.do("a4 06 0000 0000 00000003 04 00", []byte("xy\x00"), 0).good()
	h.do("a3 05 0000 0000 000000ff 00 00", nil, 255).is("00000003 616263")
	h.do("a3 05 0000 0000 000000ff 04 00", nil, 255).is("00000003 787900")
	h.do("a3 05 0000 0000 000000ff fe 00", nil, 255).is("00000008 00000040 04000100")
	h.do("a3 05 0000 0000 000000ff 06 00", nil, 255).field(10, 7)
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCIdentifierChanged)
	h.do("a4 06 0000 0000 00000041 00 00", make([]byte, 65), 0).field(6, 7)
	h.do("a4 06 0000 0000 00000003 04 00", []byte("xyz"), 0).parameter(2, 7)
	h.do("a4 06 0000 0000 00000003 00 00", []byte("a"), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("a4 06 0000 0000 00000003 06 00", []byte("abc"), 0).field(10, 7)
}

func TestTimestamp(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	o := h.other("b")
	read := func() (origin byte, ms uint64) {
		b := h.do("a3 0f 0000 0000 000000ff 00 00", nil, 255).good().data
		return b[2], uint64(binary.BigEndian.Uint16(b[4:]))<<32 | uint64(binary.BigEndian.Uint32(b[6:]))
	}
	if origin, ms := read(); origin != 0 || ms > 60_000 {
		t.Errorf("origin %d, %d ms at first", origin, ms)
	}
	const set = 1_800_000_000_000
	h.do("a4 0f 0000 0000 0000000c 00 00", cat(make([]byte, 4), be(6, set)[0:6], make([]byte, 2)), 0).good()
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCTimestampChanged)
	time.Sleep(3 * time.Millisecond)
	if origin, ms := read(); origin != 2 || ms < set+3 || ms > set+60_000 {
		t.Errorf("origin %d, %d ms after SET TIMESTAMP %d", origin, ms, uint64(set))
	}
	h.do("a4 0f 0000 0000 0000000b 00 00", make([]byte, 11), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
}

func TestSecurityProtocols(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	h.do("a2 00 0000 00 00 000000ff 00 00", nil, 255).is("000000000000 0001 00")
	h.do("a2 00 0001 00 00 000000ff 00 00", nil, 255).is("00000000")
	h.do("a2 01 0000 00 00 000000ff 00 00", nil, 255).field(1, 7)
	h.do("a2 00 0002 00 00 000000ff 00 00", nil, 255).field(2, 7)
}
