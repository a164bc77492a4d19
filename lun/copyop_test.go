package lun_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"lunlab/lun"
	"lunlab/lun/store"
)

// copyLong is EXTENDED COPY(LID4). Its first CSCD descriptor has the ID 1.
func (h *host) copyLong(list uint32, usage, flags byte, targets, segments []byte) answer {
	h.t.Helper()
	b := make([]byte, 48)
	b[0], b[1], b[3], b[15], b[16] = 1, usage<<3, 0x20, flags, 0xff
	copy(b[20:], be(4, uint64(list)))
	copy(b[42:], be(2, uint64(len(targets))))
	copy(b[44:], be(2, uint64(len(segments))))
	b = cat(b, targets, segments)
	return h.run(cat([]byte{0x83, 1}, make([]byte, 8), be(4, uint64(len(b))), []byte{0, 0}), b, 0)
}

// received is RECEIVE COPY STATUS(LID4) or another of its family.
func (h *host) received(action byte, list uint32) answer {
	h.t.Helper()
	return h.run(cat([]byte{0x84, action}, be(4, uint64(list)), make([]byte, 4), be(4, 1024), []byte{0, 0}), nil, 1024)
}

func abortCopy(list uint32) []byte {
	return cat([]byte{0x83, 0x1c}, be(4, uint64(list)), make([]byte, 10))
}

func TestExtendedCopyLong(t *testing.T) {
	var set lun.CopySet
	h := newHost(t, 1<<20, lun.DiskOptions{Copies: &set})
	o := newHost(t, 1<<20, lun.DiskOptions{Copies: &set})
	both := cat(target(h.disk), target(o.disk))
	data := pattern(200*512, 3)
	h.run(transfer(0x2a, 8, 200, 0), data, 0).good()
	h.copyLong(0x12345678, 0, 0, both, cat(segmentOf(0, 1, 2, 200, 8, 7), segmentOf(0, 0xffff, 2, 200, 8, 1000))).good()
	for _, lba := range []uint64{7, 1000} {
		if a := o.run(transfer(0x28, lba, 200, 0), nil, len(data)).good(); !bytes.Equal(a.data, data) {
			t.Errorf("the blocks at %d aren't what was copied", lba)
		}
	}
	b := h.received(5, 0x12345678).good().data
	if want := cat(be(4, 28), []byte{1, 1}, be(2, 8), be(4, 1<<32-2), []byte{0, 0, 0, 0}, be(8, 2*200*512), be(2, 2), make([]byte, 6)); !bytes.Equal(b, want) {
		t.Errorf("status\n%x, want\n%x", b, want)
	}
	if b := h.received(6, 0x12345678).good().data; len(b) != 36 || !bytes.Equal(b[32:], make([]byte, 4)) {
		t.Errorf("held data %x", b)
	}
	h.received(5, 0x78).field(2, 7)
	h.other("b").received(5, 0x12345678).field(2, 7)
	// A failure says what it was. An 8-bit list identifier is one of 32 bits.
	h.copyLong(9, 0, 0, both, cat(segmentOf(0, 1, 2, 8, 0, 0), segmentOf(0, 1, 2, 8, 2041, 0))).fails(lun.CopyAborted, lun.ASCNone)
	b = h.received(5, 9).good().data
	if len(b) != 72 || b[5] != 2 || b[12] != 2 || b[13] != 40 || b[14] != 37 || b[32+2] != byte(lun.CopyAborted) || !bytes.Equal(b[24:26], be(2, 2)) {
		t.Errorf("status of a failure %x", b)
	}
	h.do("84 00 09 00000000000000 000000ff 00 00", nil, 255).is("00000008 02 0002 00 00001000")
	// The header counts as the descriptor 0, and what isn't known isn't reached.
	h.copyLong(1, 0, 0, both, segmentOf(0, 0, 1, 8, 0, 100)).fails(lun.CopyAborted, lun.ASCUnreachableCopyTarget)
	h.copyLong(1, 0, 0, both, segmentOf(0, 1, 3, 8, 0, 100)).fails(lun.CopyAborted, lun.ASCUnreachableCopyTarget)
	h.copyLong(1, 3, 0, both, nil).parameter(1, 4)
	h.copyLong(1, 1, 0, both, nil).parameter(1, 4)
	h.copyLong(1, 0, 2, both, nil).parameter(15, 1) // G_SENSE
	h.copyLong(0, 3, 0, both, segmentOf(0, 1, 2, 8, 0, 100)).good()
	h.received(5, 0).field(2, 7)
	h.run(cat([]byte{0x83, 1}, make([]byte, 8), be(4, 47), []byte{0, 0}), make([]byte, 47), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	for at, bit := range map[int]byte{0: 7, 2: 7, 7: 0, 16: 7, 30: 0} {
		list := cat([]byte{1, 0, 0, 0x20}, make([]byte, 12), []byte{0xff}, make([]byte, 31))
		list[at] ^= 1
		h.run(cat([]byte{0x83, 1}, make([]byte, 8), be(4, 48), []byte{0, 0}), list, 0).parameter(at, bit)
	}
	h.run(abortCopy(9), nil, 0).field(2, 7) // it is over
}

// slow holds up all writes until it is opened, or each until one is sent.
type slow struct {
	store.Store
	entered, open chan struct{}
}

// openWhenIdle lets writes through when all that goes on in the test's bubble (see
// synctest) waits for something: an end that was asked for waits for the piece that
// is being written.
func (s *slow) openWhenIdle() {
	go func() {
		synctest.Wait()
		close(s.open)
	}()
}

// longCopy is segments that take long to copy to a slow disk.
func longCopy(from, to int) []byte { return bytes.Repeat(segmentOf(0, from, to, 1024, 0, 1024), 16) }

func newSlow(t *testing.T) *slow {
	return &slow{mustMem(t, 1<<20), make(chan struct{}, 1), make(chan struct{})}
}

func (s *slow) WriteAt(p []byte, off int64) (int, error) {
	select {
	case s.entered <- struct{}{}:
	default:
	}
	<-s.open
	return s.Store.WriteAt(p, off)
}

// inBubble makes a test of its own out of run.
func inBubble(run func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) { synctest.Test(t, run) }
}

// TestCopyInBackground watches a copy with IMMED set, which has a name while it
// goes on, and ends it in each way that there is.
func TestCopyInBackground(t *testing.T) {
	ends := map[string]func(h *host) byte{
		"by itself": func(h *host) byte { return 1 },
		"COPY OPERATION ABORT": func(h *host) byte {
			h.run(abortCopy(5), nil, 0).good()
			return 0x60
		},
		"LOGICAL UNIT RESET": func(h *host) byte {
			h.disk.Notify(nil, lun.LogicalUnitReset)
			h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCBusDeviceReset)
			return 0
		},
		"PREEMPT AND ABORT": func(h *host) byte {
			o := h.other("o")
			h.prOut(prRegister, 0, 0, 1).good()
			o.prOut(prRegister, 0, 0, 2).good()
			o.prOut(prPreemptAbort, 1, 2, 1).good()
			h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCRegistrationsPreempted)
			return 0x60
		},
	}
	for name, end := range ends {
		t.Run(name, inBubble(func(t *testing.T) {
			var set lun.CopySet
			s := newSlow(t)
			h := newHost(t, 1<<20, lun.DiskOptions{Copies: &set})
			o := hostOf(t, s, lun.DiskOptions{Copies: &set})
			both := cat(target(h.disk), target(o.disk))
			h.copyLong(5, 0, 1, both, longCopy(1, 2)).good()
			<-s.entered
			if b := h.received(5, 5).good().data; b[5] != 0x12 || b[13] != 0 {
				t.Errorf("status while it goes on: %x", b)
			}
			h.do("84 00 05 00000000000000 000000ff 00 00", nil, 255).is("00000008 00 0001 00 00000000")
			h.do("84 04 05 00000000000000 000000ff 00 00", nil, 255).field(2, 7)
			h.copyLong(5, 0, 1, both, segmentOf(0, 1, 2, 8, 0, 0)).fails(lun.IllegalRequest, lun.ASCOperationInProgress)
			s.openWhenIdle()
			want := end(h)
			if want == 0 {
				h.received(5, 5).field(2, 7)
				return
			}
			var b []byte
			for b = h.received(5, 5).good().data; b[5] == 0x12; b = h.received(5, 5).good().data {
				time.Sleep(time.Millisecond)
			}
			if b[5] != want || b[13] != 0 {
				t.Errorf("status %x, want %x", b, want)
			}
			if want == 0x60 && (b[12] != byte(lun.TaskAborted) || number(b[16:24]) >= 16*1024*512) {
				t.Errorf("after an abort: %x", b)
			}
		}))
	}
}

// A copy that is aborted in the foreground says so in its own status.
func TestCopyAbortedInForeground(t *testing.T) { synctest.Test(t, copyAbortedInForeground) }

func copyAbortedInForeground(t *testing.T) {
	s := newSlow(t)
	h := hostOf(t, s, lun.DiskOptions{})
	copied := make(chan answer)
	go func() { copied <- h.copyLong(5, 0, 0, target(h.disk), longCopy(1, 1)) }()
	<-s.entered
	if b := h.received(5, 5).good().data; b[5] != 0x11 {
		t.Errorf("status while it goes on: %x", b)
	}
	s.openWhenIdle()
	h.run(abortCopy(5), nil, 0).good()
	a := <-copied
	a.fails(lun.CopyAborted, lun.ASCCommandsClearedByDeviceServer)
	// Close ends a copy in the background.
	s = newSlow(t)
	h = hostOf(t, s, lun.DiskOptions{})
	h.copyLong(5, 0, 1, target(h.disk), longCopy(1, 1)).good()
	<-s.entered
	s.openWhenIdle()
	if err := h.disk.Close(); err != nil {
		t.Error(err)
	}
	h.copyLong(6, 0, 1, target(h.disk), segmentOf(0, 1, 1, 512, 0, 1024)).fails(lun.HardwareError, lun.ASCInternalTargetFailure)
}

// As many copies go on at once as the disk says, and as many results are kept.
func TestManyCopies(t *testing.T) {
	s := newSlow(t)
	h := hostOf(t, s, lun.DiskOptions{})
	segment := segmentOf(0, 1, 1, 8, 0, 1024)
	for i := range uint32(64) {
		h.copyLong(i, 0, 1, target(h.disk), segment).good()
	}
	h.copyLong(64, 0, 1, target(h.disk), segment).fails(lun.IllegalRequest, lun.ASCInsufficientResources)
	close(s.open)
	for i := range uint32(64) {
		for h.received(5, i).good().data[5] == 0x12 {
			time.Sleep(time.Millisecond)
		}
	}
	h.copyLong(64, 0, 0, target(h.disk), segment).good()
	h.received(5, 0).field(2, 7)
	h.received(5, 1).good()
	h.received(5, 64).good()
	// What a nexus knew is gone with it.
	h.disk.Notify(h.n, lun.NexusLoss)
	h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCPowerOnOrReset)
	h.received(5, 64).field(2, 7)
}

// A nexus copies from and to the disks that it sees.
func TestCopySees(t *testing.T) {
	var set lun.CopySet
	h := newHost(t, 1<<20, lun.DiskOptions{Copies: &set, LUN: 3})
	o := newHost(t, 1<<20, lun.DiskOptions{Copies: &set, LUN: 4})
	both := cat(target(h.disk), target(o.disk))
	h.copyBlocks(1, 0, both, segmentOf(0, 0, 1, 8, 0, 100)).good()
	h.n.Sees = func(number uint16) bool { return number == 3 }
	h.copyBlocks(1, 0, both, segmentOf(0, 0, 1, 8, 0, 100)).fails(lun.CopyAborted, lun.ASCUnreachableCopyTarget)
	h.copyBlocks(1, 0, both, segmentOf(0, 1, 0, 8, 0, 100)).fails(lun.CopyAborted, lun.ASCUnreachableCopyTarget)
	h.copyBlocks(1, 0, both, segmentOf(0, 0, 0, 8, 0, 100)).good()
}
