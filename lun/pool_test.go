package lun_test

import (
	"bytes"
	"testing"

	"lunlab/lun"
	"lunlab/lun/store/mem"
)

func TestThinThresholds(t *testing.T) {
	const mib = 2048 // blocks
	s, err := mem.NewLimited(1<<30, 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	h := hostOf(t, s, lun.DiskOptions{Thin: true, SoftThreshold: 8 << 20})
	o := h.other("b")
	h.do("12 01 b2 00ff 00", nil, 255).is("00b2 0004 0be60200")
	write := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			h.run(transfer(0x2a, uint64(i*mib), mib, 0), make([]byte, 1<<20), 0).good()
		}
	}
	quiet := func() {
		t.Helper()
		for _, x := range []*host{h, o} {
			x.do("00 00 00 00 00 00", nil, 0).good()
		}
	}
	told := func(at byte) {
		t.Helper()
		for _, x := range []*host{h, o} {
			a := x.do("00 00 00 00 00 00", nil, 0).fails(lun.UnitAttention, lun.ASCThinThresholdReached)
			if a.sense[0] != 0xf0 || !bytes.Equal(a.sense[3:7], be(4, uint64(at))) {
				t.Errorf("sense %x, want the descriptor at %d", a.sense, at)
			}
		}
		quiet()
	}
	write(0, 8) // the middle of the threshold's range
	quiet()
	h.do("4d 00 4c 00 00 0000 00ff 00", nil, 255).is("0c000018 0001 03 08 00000008 01000000 0002 03 08 00000008 01000000")
	write(8, 9)
	told(16)
	write(9, 12)
	quiet() // once is enough
	h.unmap([2]uint64{6 * mib, 6 * mib}).good()
	quiet()
	write(6, 9)
	told(16)
	// The other threshold: fewer than 4 MiB available.
	page := unhex(t, "dc02001c 000000000000000000000000 01020000 00000008 80010000 00000004")
	page[0] &^= 0x80
	list := cat(make([]byte, 8), page)
	h.run([]byte{0x55, 0x10, 0, 0, 0, 0, 0, 0, byte(len(list)), 0}, list, 0).good()
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCModeParametersChanged)
	write(9, 12)
	quiet()
	write(12, 13)
	told(24)
	// Nothing is told without LBPERE.
	h.unmap([2]uint64{0, 13 * mib}).good()
	h.selectPage(0, "010a c0000000000000000000").good()
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCModeParametersChanged)
	write(0, 16)
	quiet()
	h.run(transfer(0x2a, 16*mib, 1, 0), make([]byte, 512), 0).fails(lun.DataProtect, lun.ASCSpaceAllocationFailed)

	roomy := newHost(t, 1<<20, lun.DiskOptions{Thin: true})
	roomy.do("12 01 b2 00ff 00", nil, 255).is("00b2 0004 00e60200")
	roomy.do("4d 00 4c 00 00 0000 00ff 00", nil, 255).field(2, 5)
	roomy.do("5a 08 1c 02 000000 00ff 00", nil, 255).field(3, 7)
}

// TestSharedThreshold passes the thresholds of a disk that does nothing itself: by
// what another takes of their room, and by a change of the room.
func TestSharedThreshold(t *testing.T) {
	room := mem.NewRoom(8 << 20)
	disk := func() *host {
		t.Helper()
		s, err := room.New(16 << 20)
		if err != nil {
			t.Fatal(err)
		}
		return hostOf(t, s, lun.DiskOptions{Thin: true, SoftThreshold: 2 << 20})
	}
	idle, busy := disk(), disk()
	fill := func(mib int) {
		t.Helper()
		busy.run(transfer(0x2a, 0, uint32(mib)*2048, 0), make([]byte, mib<<20), 0).good()
	}
	fill(2)
	idle.do(testReady, nil, 0).good()
	fill(3)
	for _, h := range []*host{idle, busy} {
		h.do(testReady, nil, 0).fails(lun.UnitAttention, lun.ASCThinThresholdReached)
		h.do(testReady, nil, 0).good()
		// Of 8 MiB, 3 are used, whichever disk is asked: SCOPE 10b.
		h.do("4d 00 4c 00 00 0000 00ff 00", nil, 255).is("0c000018 0001 03 08 00000005 02000000 0002 03 08 00000003 02000000")
	}
	// And when fewer than 2 MiB are available.
	list := cat(make([]byte, 8), unhex(t, "5c02001c 000000000000000000000000 01020000 00000002 80010000 00000002"))
	idle.run([]byte{0x55, 0x10, 0, 0, 0, 0, 0, 0, byte(len(list)), 0}, list, 0).good()
	idle.do(testReady, nil, 0).good()
	if err := room.SetLimit(4 << 20); err != nil {
		t.Fatal(err)
	}
	idle.do(testReady, nil, 0).fails(lun.UnitAttention, lun.ASCThinThresholdReached)
	idle.do(testReady, nil, 0).good()
}

// TestRoomComing has a pool run out of room for a while, and for good. A write that
// failed for a while is done when the room has come.
func TestRoomComing(t *testing.T) {
	const mib = 2048 // blocks
	room := mem.NewRoom(1 << 20)
	s, err := room.New(16 << 20)
	if err != nil {
		t.Fatal(err)
	}
	h := hostOf(t, s, lun.DiskOptions{Thin: true})
	write := func(lba uint64) answer {
		t.Helper()
		return h.run(transfer(0x2a, lba, 8, 0), pattern(8*512, 1), 0)
	}
	h.run(transfer(0x2a, 0, mib, 0), pattern(1<<20, 2), 0).good()
	write(mib).fails(lun.DataProtect, lun.ASCSpaceAllocationFailed)
	room.Expect(true)
	if a := write(mib).fails(lun.NotReady, lun.ASCNotReadySpaceAllocation); a.sense[15] != 0 {
		t.Errorf("sense-key specific bytes in %x", a.sense)
	}
	h.do(testReady, nil, 0).good() // it is only that which needs room that waits
	write(0).good()
	h.run(transfer(0x28, mib, 1, 0), nil, 512).good()
	h.run([]byte{0x41, 0, 0, 0, 0x08, 0, 0, 0, 8, 0}, pattern(512, 1), 0).fails(lun.NotReady, lun.ASCNotReadySpaceAllocation)
	h.do("4d 00 4c 00 00 0000 00ff 00", nil, 255).is("0c000018 0001 03 08 00000000 01000000 0002 03 08 00000001 01000000")
	if err := room.SetLimit(2 << 20); err != nil {
		t.Fatal(err)
	}
	write(mib).good()
	h.do("4d 00 4c 00 00 0000 00ff 00", nil, 255).is("0c000018 0001 03 08 00000000 01000000 0002 03 08 00000001 01000000")
	room.Expect(false)
	h.run(transfer(0x2a, 0, 2*mib, 0), pattern(2<<20, 3), 0).good()
	write(2*mib).fails(lun.DataProtect, lun.ASCSpaceAllocationFailed)
	for _, limit := range []int64{0, -1} {
		if room.SetLimit(limit) == nil {
			t.Errorf("SetLimit(%d) gave no error", limit)
		}
	}
	if mem.NewRoom(0).SetLimit(1<<20) == nil {
		t.Error("room without a limit got one")
	}
}
