package lun_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"lunlab/lun"
	"lunlab/lun/store"
)

func blockRanges(ranges ...[2]uint64) (b []byte) {
	for _, r := range ranges {
		b = cat(b, be(8, r[0]), be(4, r[1]), make([]byte, 4))
	}
	return b
}

// populate is POPULATE TOKEN.
func (h *host) populate(list uint32, flags byte, timeout, kind uint32, ranges ...[2]uint64) answer {
	h.t.Helper()
	r := blockRanges(ranges...)
	b := cat(be(2, uint64(14+len(r))), []byte{flags, 0}, be(4, uint64(timeout)), be(4, uint64(kind)), []byte{0, 0}, be(2, uint64(len(r))), r)
	return h.run(cat([]byte{0x83, 0x10, 0, 0, 0, 0}, be(4, uint64(list)), be(4, uint64(len(b))), []byte{0, 0}), b, 0)
}

// token makes a token and fetches it.
func (h *host) token(timeout uint32, ranges ...[2]uint64) []byte {
	h.t.Helper()
	h.populate(1, 0, timeout, 0, ranges...).good()
	b := h.received(7, 1).good().data
	if len(b) != 32+4+2+512 || b[4] != 0x10 || b[5] != 1 || !bytes.Equal(b[32:38], cat(be(4, 514), []byte{0, 0})) {
		h.t.Fatalf("no token in %x", b)
	}
	return b[38:]
}

// useToken is WRITE USING TOKEN.
func (h *host) useToken(list uint32, flags byte, offset uint64, token []byte, ranges ...[2]uint64) answer {
	h.t.Helper()
	r := blockRanges(ranges...)
	b := cat(be(2, uint64(534+len(r))), []byte{flags, 0, 0, 0, 0, 0}, be(8, offset), token, make([]byte, 6), be(2, uint64(len(r))), r)
	return h.run(cat([]byte{0x83, 0x11, 0, 0, 0, 0}, be(4, uint64(list)), be(4, uint64(len(b))), []byte{0, 0}), b, 0)
}

func zeroToken() []byte {
	b := make([]byte, 512)
	copy(b, []byte{0xff, 0xff, 0, 1, 0, 0, 1, 0xf8})
	return b
}

func (h *host) wantBlocks(lba uint64, want []byte) {
	h.t.Helper()
	size := h.disk.Options().BlockSize
	if a := h.run(transfer(0x28, lba, uint32(len(want)/size), 0), nil, len(want)).good(); !bytes.Equal(a.data, want) {
		h.t.Errorf("the blocks at %d are %x..., want %x...", lba, a.data[:8], want[:8])
	}
}

func TestTokens(t *testing.T) {
	var set lun.CopySet
	h := newHost(t, 4<<20, lun.DiskOptions{Copies: &set})
	o := newHost(t, 4<<20, lun.DiskOptions{Copies: &set, BlockSize: 4096})
	data := pattern(400*512, 3)
	h.run(transfer(0x2a, 0, 400, 0), data, 0).good()
	const kib = 1024
	// The data of the token is that of the second range behind that of the first.
	token := h.token(0, [2]uint64{200, 200}, [2]uint64{8, 0}, [2]uint64{0, 200})
	represents := cat(data[200*512:], data[:200*512])
	if !bytes.Equal(token[:8], []byte{0, 0x80, 0, 1, 0, 0, 1, 0xf8}) || !bytes.Equal(token[48:64], cat(make([]byte, 8), be(8, 400*512))) || !bytes.Equal(token[96:100], be(4, 512)) {
		t.Errorf("token %x", token[:128])
	}
	// It is written within the disk, and to one with other blocks, at any offset.
	h.useToken(2, 0, 0, token, [2]uint64{1000, 100}, [2]uint64{2000, 300}).good()
	h.wantBlocks(1000, represents[:50*kib])
	h.wantBlocks(2000, represents[50*kib:])
	o.useToken(2, 0, 3, token, [2]uint64{9, 20}, [2]uint64{100, 2}).good()
	o.wantBlocks(9, represents[12*kib:92*kib])
	o.wantBlocks(100, represents[92*kib:100*kib])
	b := o.received(7, 2).good().data
	if want := cat(be(4, 32), []byte{0x11, 1}, be(2, 6), be(4, 1<<32-2), []byte{0, 0, 0, 0xf1}, be(8, 22), make([]byte, 12)); !bytes.Equal(b, want) {
		t.Errorf("information of WRITE USING TOKEN\n%x, want\n%x", b, want)
	}
	// Beyond the end: what there is, zeros to the end of a block, and an error.
	short := h.token(0, [2]uint64{0, 20}) // two and a half blocks of 4096
	o.run(transfer(0x2a, 200, 8, 0), pattern(8*4096, 9), 0).good()
	a := o.useToken(3, 0, 1, short, [2]uint64{200, 8}).fails(lun.CopyAborted, lun.ASCCopyTargetUnderrun)
	if number(a.sense[3:7]) != 2 {
		t.Errorf("underrun after %d blocks, want 2", number(a.sense[3:7]))
	}
	o.wantBlocks(200, cat(data[4096:10*kib], make([]byte, 2*kib), pattern(8*4096, 9)[8192:12288]))
	if b := o.received(5, 3).good().data; b[5] != 3 || b[12] != 2 || number(b[16:24]) != 2 {
		t.Errorf("status of an underrun %x", b)
	}
	o.useToken(3, 0, 3, short, [2]uint64{200, 8}).parameter(8, 7)
	o.useToken(3, 0, 1<<60, short, [2]uint64{200, 8}).parameter(8, 7)
	// Zeros have no end, and no disk.
	o.useToken(4, 0, 1<<40, zeroToken(), [2]uint64{200, 8}).good()
	o.wantBlocks(200, make([]byte, 8*4096))
	// A token is there until it was fetched.
	h.populate(7, 1, 0, 0, [2]uint64{0, 1}).good()
	cdb := cat([]byte{0x84, 7}, be(4, 7), make([]byte, 4), be(4, 40), []byte{0, 0})
	if a := h.run(cdb, nil, 40).good(); a.in != 40 || number(a.data[:4]) != 546 {
		t.Errorf("a short allocation length: %x", a.data)
	}
	if b := h.received(7, 7).good().data; len(b) != 550 {
		t.Errorf("%d bytes of information, want 550", len(b))
	}
	if b := h.received(7, 7).good().data; len(b) != 36 {
		t.Errorf("%d bytes of information after the token was fetched, want 36", len(b))
	}
	h.received(7, 99).field(2, 7)
}

// TestTokenChanges has each kind of write change what a token stands for.
func TestTokenChanges(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Thin: true})
	block := pattern(512, 1)
	for name, change := range map[string]func() answer{
		"WRITE":             func() answer { return h.run(transfer(0x2a, 19, 1, 0), block, 0) },
		"WRITE SAME":        func() answer { return h.run(transfer(0x93, 19, 1, 0), block, 0) },
		"UNMAP":             func() answer { return h.unmap([2]uint64{10, 1}) },
		"ORWRITE":           func() answer { return h.run(transfer(0x8b, 10, 1, 0), block, 0) },
		"WRITE AND VERIFY":  func() answer { return h.run(transfer(0x8e, 10, 1, 0), block, 0) },
		"WRITE ATOMIC":      func() answer { return h.run(cat([]byte{0x9c, 0}, be(8, 10), []byte{0, 0, 0, 1, 0, 0}), block, 0) },
		"WRITE SCATTERED":   func() answer { return h.scatter(false, 0, 512, 1, [][]byte{scatterRange(12, 1, 0, 0, 0)}, block) },
		"EXTENDED COPY":     func() answer { return h.copyBlocks(1, 0, target(h.disk), segmentOf(0, 0, 0, 8, 100, 5)) },
		"WRITE USING TOKEN": func() answer { return h.useToken(9, 0, 0, zeroToken(), [2]uint64{19, 4}) },
		"FORMAT UNIT":       func() answer { return h.do("04 00 00 00 00 00", nil, 0) },
	} {
		token := h.token(0, [2]uint64{100, 1}, [2]uint64{10, 10})
		h.run(transfer(0x2a, 9, 1, 0), block, 0).good() // beside it
		h.run(transfer(0x2a, 20, 1, 0), block, 0).good()
		h.useToken(2, 0, 0, token, [2]uint64{200, 11}).good()
		change().good()
		if a := h.useToken(2, 0, 0, token, [2]uint64{200, 11}); a.status == lun.Good {
			t.Errorf("the token is still good after %s", name)
		} else {
			a.fails(lun.IllegalRequest, lun.ASCTokenCancelled)
		}
	}
	// A use that overwrites what it reads ends itself, with no wrong data.
	token := h.token(0, [2]uint64{0, 512})
	h.useToken(2, 0, 0, token, [2]uint64{300, 512}).fails(lun.CopyAborted, lun.ASCNone)
}

func TestTokenErrors(t *testing.T) { synctest.Test(t, tokenErrors) }

func tokenErrors(t *testing.T) {
	var set lun.CopySet
	h := newHost(t, 1<<20, lun.DiskOptions{Copies: &set})
	alone := newHost(t, 1<<20, lun.DiskOptions{})
	one := [2]uint64{0, 8}
	h.populate(1, 0, 601, 0, one).parameter(4, 7)
	h.populate(1, 2, 0, 0x00800000, one).parameter(8, 7)
	h.populate(1, 2, 0, 0x00800001, one).good()
	h.populate(1, 4, 0, 0, one).parameter(2, 2)
	h.populate(1, 0, 0, 0).parameter(0, 7)
	h.populate(1, 0, 0, 0, make([][2]uint64, 65)...).fails(lun.IllegalRequest, lun.ASCTooManySegmentDescriptors)
	h.populate(1, 0, 0, 0, one, [2]uint64{7, 1}).parameter(16, 7)
	h.populate(1, 0, 0, 0, [2]uint64{2041, 8}).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	h.do("83 10 00000000 00000001 00000000 00 00", nil, 0).good()
	// The only range is cut.
	h.do("83 10 00000000 00000001 0000001f 00 00", cat(unhex(t, "001e0000000000000000000000000010"), make([]byte, 15)), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("83 10 00000000 00000001 0000000f 00 00", make([]byte, 15), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("83 11 00000000 00000001 00000020 00 00", make([]byte, 32), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	big := newHost(t, 1<<40, lun.DiskOptions{})
	big.populate(1, 0, 0, 0, [2]uint64{0, 2 << 20}).good()
	big.populate(1, 0, 0, 0, one, [2]uint64{8, 2<<20 - 7}).parameter(32+8, 7)

	token := h.token(0, one)
	bad := func(at int, code uint16) {
		t.Helper()
		b := bytes.Clone(token)
		b[at] ^= 1
		h.useToken(2, 0, 0, b, [2]uint64{100, 8}).fails(lun.IllegalRequest, code)
	}
	bad(0, lun.ASCUnsupportedTokenType)
	bad(7, lun.ASCInvalidTokenLength)
	bad(15, lun.ASCTokenUnknown)
	bad(30, lun.ASCRemoteTokenUsageNotSupported)
	bad(511, lun.ASCTokenCorrupt)
	alone.useToken(2, 0, 0, token, [2]uint64{100, 8}).fails(lun.IllegalRequest, lun.ASCRemoteTokenUsageNotSupported)
	h.useToken(2, 2, 0, token, [2]uint64{100, 8}).good() // DEL_TKN
	h.useToken(2, 0, 0, token, [2]uint64{100, 8}).fails(lun.IllegalRequest, lun.ASCTokenDeleted)
	ro := newHost(t, 1<<20, lun.DiskOptions{ReadOnly: true})
	ro.useToken(2, 0, 0, zeroToken(), [2]uint64{100, 8}).fails(lun.DataProtect, lun.ASCWriteProtected)

	// One that lies unused expires.
	token = h.token(1, one)
	time.Sleep(1100 * time.Millisecond)
	h.useToken(2, 0, 0, token, [2]uint64{100, 8}).fails(lun.IllegalRequest, lun.ASCTokenExpired)

	// There is an end to them, and to what is known of those that were.
	h.run(transfer(0x2a, 0, 8, 0), make([]byte, 4096), 0).good()
	first := h.token(0, one)
	for range 63 {
		h.token(0, one)
	}
	h.populate(1, 0, 0, 0, one).fails(lun.IllegalRequest, lun.ASCInsufficientResourcesForRODToken)
	h.run(transfer(0x2a, 0, 8, 0), make([]byte, 4096), 0).good()
	h.useToken(2, 0, 0, first, [2]uint64{100, 8}).fails(lun.IllegalRequest, lun.ASCTokenCancelled)
	for range 64 {
		h.token(0, one)
	}
	h.run(transfer(0x2a, 0, 8, 0), make([]byte, 4096), 0).good()
	h.token(0, one)
	h.useToken(2, 0, 0, first, [2]uint64{100, 8}).fails(lun.IllegalRequest, lun.ASCTokenUnknown)
}

// racing calls race when it is first read.
type racing struct {
	store.Store
	race func()
}

func (r *racing) ReadAt(p []byte, off int64) (int, error) {
	if race := r.race; race != nil {
		r.race = nil
		race()
	}
	return r.Store.ReadAt(p, off)
}

// A write that comes while a token is used: nothing that it wrote passes for what
// the token stands for.
func TestTokenRace(t *testing.T) {
	var set lun.CopySet
	s := &racing{Store: mustMem(t, 1<<20)}
	h := hostOf(t, s, lun.DiskOptions{Copies: &set})
	o := newHost(t, 1<<20, lun.DiskOptions{Copies: &set})
	w := h.other("w")
	token := h.token(0, [2]uint64{0, 8})
	s.race = func() { w.run(transfer(0x2a, 4, 1, 0), pattern(512, 1), 0).good() }
	o.useToken(2, 0, 0, token, [2]uint64{100, 8}).fails(lun.CopyAborted, lun.ASCNone)
	o.wantBlocks(100, make([]byte, 4096))
}

// WRITE USING TOKEN with IMMED goes on in the background.
func TestTokenInBackground(t *testing.T) {
	s := newSlow(t)
	h := hostOf(t, s, lun.DiskOptions{})
	h.useToken(5, 1, 0, zeroToken(), [2]uint64{0, 512}).good()
	<-s.entered
	if b := h.received(7, 5).good().data; b[5] != 0x12 || len(b) != 36 {
		t.Errorf("information while it goes on: %x", b)
	}
	h.populate(5, 0, 0, 0, [2]uint64{0, 1}).fails(lun.IllegalRequest, lun.ASCOperationInProgress)
	close(s.open)
	for h.received(7, 5).good().data[5] == 0x12 {
		time.Sleep(time.Millisecond)
	}
	if b := h.received(7, 5).good().data; b[5] != 1 || number(b[16:24]) != 512 {
		t.Errorf("information afterwards: %x", b)
	}
}

// The third-party copy page says the limits that hold.
func TestTokenLimits(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{BlockSize: 4096})
	page := h.do("12 01 8f 0fff 00", nil, 4095).good().data[4:]
	got := map[uint64][]byte{}
	for len(page) > 0 {
		n := 4 + number(page[2:4])
		got[number(page[:2])] = page[4:n]
		page = page[n:]
	}
	for kind, want := range map[uint64][]byte{
		0x0000: cat(make([]byte, 6), be(2, 64), be(4, 600), be(4, 60), be(8, 1<<18), be(8, 1<<18)),
		0x0001: {15, 0x83, 5, 0x00, 0x01, 0x10, 0x11, 0x1c, 0x84, 6, 0x00, 0x03, 0x04, 0x05, 0x06, 0x07},
		0x000c: unhex(t, "0002ffff"),
		0x0108: cat(be(4, 128), unhex(t, "0080000103"), make([]byte, 59), unhex(t, "ffff000102"), make([]byte, 59)),
	} {
		if !bytes.Equal(got[kind], want) {
			t.Errorf("descriptor %04x: %x, want %x", kind, got[kind], want)
		}
	}
	if f := got[0x0106]; len(f) != 92 || !bytes.Equal(f[12:24], cat(be(4, 3600), be(4, 3600), be(4, 600))) || number(f[42:44]) != 48 || number(f[52:60]) != 1<<30 {
		t.Errorf("ROD token features %x", f)
	}
}
