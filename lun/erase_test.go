package lun_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/lun/store"
)

func sanitizeCDB(flags byte, n int) []byte {
	return cat([]byte{0x48, flags, 0, 0, 0, 0, 0}, be(2, uint64(n)), []byte{0})
}

func overwriteList(flags byte, pattern []byte) []byte {
	return cat([]byte{flags, 0}, be(2, uint64(len(pattern))), pattern)
}

func TestSanitize(t *testing.T) {
	for _, thin := range []bool{false, true} {
		s := mustMem(t, 1<<20)
		h := hostOf(t, s, lun.DiskOptions{Thin: thin})
		h.run(transfer(0x2a, 8, 8, 0), pattern(4096, 1), 0).good()
		for _, c := range []struct {
			flags byte
			list  []byte
			want  []byte
		}{
			{0x01, overwriteList(1, pattern(512, 3)), pattern(512, 3)},
			{0x01, overwriteList(0x83, []byte{1, 2, 3}), bytes.Repeat([]byte{1, 2, 3}, 171)[:512]},
			{0x01, overwriteList(0x82, []byte{0x0f}), bytes.Repeat([]byte{0x0f}, 512)},
			{0x02, nil, make([]byte, 512)},
			{0x03, nil, make([]byte, 512)},
		} {
			h.run(sanitizeCDB(c.flags, len(c.list)), c.list, 0).good()
			for _, lba := range []uint64{8, 15} {
				if a := h.run(transfer(0x28, lba, 1, 0), nil, 512).good(); !bytes.Equal(a.data, c.want) {
					t.Errorf("thin %v: %x with %x left %x", thin, c.flags, c.list, a.data[:16])
				}
			}
		}
		if thin && s.Used() != 0 {
			t.Errorf("%d bytes are used after a SANITIZE", s.Used())
		}
	}
}

func TestSanitizeErrors(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Thin: true})
	h.run(sanitizeCDB(0x02, 4), make([]byte, 4), 0).field(8, 2)
	h.run(sanitizeCDB(0x04, 0), nil, 0).field(1, 4)
	for _, n := range []int{0, 4, 517} {
		h.run(sanitizeCDB(0x01, n), make([]byte, n), 0).field(7, 7)
	}
	h.run(sanitizeCDB(0x01, 6), overwriteList(0, []byte{1, 2}), 0).parameter(0, 4)
	h.run(sanitizeCDB(0x01, 6), []byte{1, 0, 0, 3, 1, 2}, 0).parameter(2, 7)
	h.run(sanitizeCDB(0x01, 6), overwriteList(0x21, []byte{1, 2}), 0).parameter(0, 6)
	h.run(sanitizeCDB(0x01, 7), overwriteList(1, []byte{1, 2}), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.run(sanitizeCDB(0x1f, 0), nil, 0).good()
	ro := newHost(t, 1<<20, lun.DiskOptions{ReadOnly: true, Thin: true})
	ro.run(sanitizeCDB(0x02, 0), nil, 0).fails(lun.DataProtect, lun.ASCWriteProtected)
	ro.do("04 00 00 00 00 00", nil, 0).fails(lun.DataProtect, lun.ASCWriteProtected)
}

// TestEraseInProgress looks at a disk while it sanitizes and formats: nothing
// gets at the medium, and nothing ends it.
func TestEraseInProgress(t *testing.T) {
	for _, c := range []struct {
		name string
		cdb  []byte
		list []byte
		code uint16
	}{
		{"SANITIZE", sanitizeCDB(0x83, 0), nil, lun.ASCNotReadySanitizeInProgress},
		{"FORMAT UNIT", []byte{4, 0x10, 0, 0, 0, 0}, []byte{0, 0x82, 0, 0}, lun.ASCNotReadyFormatInProgress},
	} {
		h := newHost(t, 1<<20, lun.DiskOptions{Thin: true, EraseTime: time.Hour})
		if !h.disk.Blocking() {
			t.Error("the disk isn't Blocking")
		}
		o := h.other("b")
		h.run(c.cdb, c.list, 0).good()
		for _, cdb := range []string{"00 00 00 00 00 00", "28 00 00000000 00 0001 00", "1b 00 00 00 01 00", "04 00 00 00 00 00",
			"48 03 0000000000 0000 00", "48 1f 0000000000 0000 00", "15 10 0000 00 00"} {
			a := o.do(cdb, nil, 512).fails(lun.NotReady, c.code)
			if a.sense[15]&0x80 == 0 {
				t.Errorf("%s: no progress in %x", c.name, a.sense)
			}
		}
		o.do("12 00 00 00ff 00", nil, 255).good()
		if c.code == lun.ASCNotReadySanitizeInProgress {
			allowedDuringSanitize(t, h)
		}
		h.disk.Notify(nil, lun.LogicalUnitReset)
		o.do("03 00 00 00 ff 00", nil, 255).good() // takes the unit attention
		for last, steps := -1, 0; steps < 3; time.Sleep(5 * time.Millisecond) {
			a := o.do("03 00 00 00 ff 00", nil, 255).good()
			if p := int(binary.BigEndian.Uint16(a.data[16:])); a.data[2] != byte(lun.NotReady) || p < last {
				t.Fatalf("%s: progress went from %d to %x", c.name, last, a.data)
			} else if p > last {
				last, steps = p, steps+1
			}
		}

		// It takes as long as it was said to, and then the disk is ready.
		const least = 50 * time.Millisecond
		h = newHost(t, 1<<20, lun.DiskOptions{Thin: true, EraseTime: least})
		start := time.Now()
		h.run(c.cdb, c.list, 0).good()
		for h.do("00 00 00 00 00 00", nil, 0).status != lun.Good {
			time.Sleep(time.Millisecond)
		}
		if d := time.Since(start); d < least {
			t.Errorf("%s took %v", c.name, d)
		}
	}
}

// allowedDuringSanitize looks which commands a disk takes that sanitizes (SBC-5 4.11.2).
func allowedDuringSanitize(t *testing.T, h *host) {
	t.Helper()
	for _, cdb := range []string{
		"a0 00 00 000000 000000ff 00 00", "25 00 00000000 0000 00 00", "9e 10 0000000000000000 00000020 00 00",
		"a3 0c 00 00 0000 000000ff 00 00", "a3 0d 00 000000 000000ff 00 00", "4d 00 4d 00 00 0000 00ff 00",
		"1a 00 08 00 ff 00", "5a 00 0a 00 000000 00ff 00", "1a 00 18 00 ff 00", "1a 00 19 00 ff 00", "1a 00 1c 00 ff 00",
	} {
		h.do(cdb, nil, 255).good()
	}
	for _, cdb := range []string{
		"1a 00 3f 00 ff 00", "1a 00 0a 01 ff 00", "4d 00 40 00 00 0000 00ff 00", "4c 00 00 00 000000 0000 00",
		"5e 00 0000000000 00ff 00", "5f 00 00 0000 00000018 00", "3b 02 00 000000 000000 00", "3c 02 00 000000 0000ff 00",
		"16 00 00 00 00 00", "a4 0f 0000 0000 00000000 00 00", "1d 04 00 0000 00",
	} {
		h.do(cdb, make([]byte, 24), 255).fails(lun.NotReady, lun.ASCNotReadySanitizeInProgress)
	}
}

// Over a store in memory, a transport needn't be held up by what takes long.
func TestWaits(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Thin: true})
	for cdb, want := range map[string]bool{
		"04 00 00 00 00 00": true, "48 83 0000000000 0000 00": true, "83 11 00000000 00000000 00000000 00 00": true,
		"28 00 00000000 00 0001 00": false, "12 00 00 00ff 00": false, "": false,
	} {
		if got := lun.Waits(h.disk, unhex(t, cdb)); got != want {
			t.Errorf("%s: %v, want %v", cdb, got, want)
		}
	}
	file := hostOf(t, thickOnly{mustMem(t, 1<<20)}, lun.DiskOptions{})
	if !lun.Waits(file.disk, unhex(t, "28 00 00000000 00 0001 00")) {
		t.Error("a disk over a file doesn't wait")
	}
}

// gate holds up the first write.
type gate struct {
	store.Store
	once          sync.Once
	entered, open chan struct{}
}

func (g *gate) WriteAt(p []byte, off int64) (int, error) {
	g.once.Do(func() {
		close(g.entered)
		<-g.open
	})
	return g.Store.WriteAt(p, off)
}

// TestEraseOvertakes has a FORMAT UNIT come in the middle of a copy to the disk:
// nothing of the copy is written after it.
func TestEraseOvertakes(t *testing.T) {
	var set lun.CopySet
	g := &gate{Store: mustMem(t, 1<<20), entered: make(chan struct{}), open: make(chan struct{})}
	h := newHost(t, 1<<20, lun.DiskOptions{Copies: &set})
	o := hostOf(t, g, lun.DiskOptions{Copies: &set})
	const n = 512 // more than one piece
	h.run(transfer(0x2a, 0, n, 0), pattern(n*512, 3), 0).good()
	copied := make(chan answer)
	go func() {
		copied <- h.copyBlocks(1, 0, cat(target(h.disk), target(o.disk)), segmentOf(0, 0, 1, n, 0, 0))
	}()
	<-g.entered
	o.do("04 10 00 00 00 00", []byte{0, 0x82, 0, 0}, 0).good() // IMMED
	time.Sleep(10 * time.Millisecond)                          // it waits for the piece that is being written
	close(g.open)
	a := <-copied
	a.fails(lun.CopyAborted, lun.ASCThirdPartyDeviceFailure)
	for o.do("00 00 00 00 00 00", nil, 0).status != lun.Good {
		time.Sleep(time.Millisecond)
	}
	if a := o.run(transfer(0x28, 0, n, 0), nil, n*512).good(); !bytes.Equal(a.data, make([]byte, n*512)) {
		t.Error("data was written after FORMAT UNIT")
	}
	// What comes afterwards isn't kept from anything.
	h.copyBlocks(1, 0, cat(target(h.disk), target(o.disk)), segmentOf(0, 0, 1, n, 0, 0)).good()
	o.run(transfer(0x2a, 0, 1, 0), pattern(512, 1), 0).good()
}

// TestSanitizeThick erases disks that can't unmap: all reads as zeros, and write
// pointers are back where zones begin.
func TestSanitizeThick(t *testing.T) {
	for _, o := range []lun.DiskOptions{{}, {BlockSize: 4096, Protection: 1}, {Zones: &lun.ZoneOptions{Size: 64}}} {
		for _, action := range []byte{2, 3} {
			h := hostOf(t, thickOnly{mustMem(t, 1<<20)}, o)
			size := max(o.BlockSize, 512)
			for range 2 {
				h.run(transfer(0x2a, 0, 4, 0), pattern(4*size, 5), 0).good()
				h.run(sanitizeCDB(action, 0), nil, 0).good()
				if o.Zones == nil {
					if a := h.run(transfer(0x28, 0, 4, 0), nil, 4*size).good(); !bytes.Equal(a.data, make([]byte, 4*size)) {
						t.Errorf("%+v: something is left after SANITIZE %d", o, action)
					}
				}
			}
		}
	}
}

func TestEraseOutlivesItsCommand(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Thin: true, EraseTime: time.Hour})
	cancel := make(chan struct{})
	close(cancel)
	c := lun.Command{Nexus: h.n, CDB: sanitizeCDB(0x03, 0), Cancel: cancel}
	h.disk.Execute(&c)
	h.do("00 00 00 00 00 00", nil, 0).fails(lun.NotReady, lun.ASCNotReadySanitizeInProgress)
	// Close doesn't wait for the rest of the time.
	long := newHost(t, 1<<20, lun.DiskOptions{Thin: true, EraseTime: time.Hour})
	long.run(sanitizeCDB(0x83, 0), nil, 0).good()
	if err := long.disk.Close(); err != nil {
		t.Error(err)
	}
}

func TestEraseFails(t *testing.T) {
	s := &broken{Store: mustMem(t, 1<<20)}
	h := hostOf(t, s, lun.DiskOptions{Thin: true})
	odd := errors.New("odd")
	overwrite := overwriteList(1, []byte{1})
	h.run(transfer(0x2a, 0, 1, 0), pattern(512, 1), 0).good()
	s.fail(odd)
	h.run(sanitizeCDB(0x21, len(overwrite)), overwrite, 0).fails(lun.HardwareError, lun.ASCInternalTargetFailure)
	s.fail(nil)
	h.run(transfer(0x28, 0, 1, 0), nil, 512).fails(lun.MediumError, lun.ASCSanitizeFailed)
	h.run(sanitizeCDB(0x1f, 0), nil, 0).good() // AUSE was set
	h.run(transfer(0x28, 0, 1, 0), nil, 512).good()
	s.fail(odd)
	h.run(sanitizeCDB(0x01, len(overwrite)), overwrite, 0).fails(lun.HardwareError, lun.ASCInternalTargetFailure)
	s.fail(nil)
	h.run(sanitizeCDB(0x1f, 0), nil, 0).field(1, 4)
	h.run(transfer(0x28, 0, 1, 0), nil, 512).fails(lun.MediumError, lun.ASCSanitizeFailed)
	h.do("04 00 00 00 00 00", nil, 0).fails(lun.MediumError, lun.ASCSanitizeFailed)
	h.run(sanitizeCDB(0x23, 0), nil, 0).field(1, 5) // AUSE would be a way out
	h.run(sanitizeCDB(0x1f, 0), nil, 0).field(1, 4)
	h.run(sanitizeCDB(0x03, 0), nil, 0).good()
	h.run(sanitizeCDB(0x23, 0), nil, 0).good()
	h.run(sanitizeCDB(0x1f, 0), nil, 0).good()
	h.run(transfer(0x28, 0, 1, 0), nil, 512).good()
	s.fail(odd)
	h.do("04 00 00 00 00 00", nil, 0).fails(lun.HardwareError, lun.ASCInternalTargetFailure)
	s.fail(nil)
	h.run(transfer(0x28, 0, 1, 0), nil, 512).fails(lun.MediumError, lun.ASCFormatFailed)
	h.do("04 00 00 00 00 00", nil, 0).good()
	h.run(transfer(0x28, 0, 1, 0), nil, 512).good()
}

func TestFormat(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	h.run(transfer(0x2a, 2000, 8, 0), pattern(4096, 1), 0).good()
	last := func() []byte { return h.run(transfer(0x28, 2007, 1, 0), nil, 512).good().data }
	h.do("04 00 00 00 00 00", nil, 0).good()
	if !bytes.Equal(last(), make([]byte, 512)) {
		t.Error("data is left")
	}
	h.do("04 10 00 00 00 00", cat([]byte{0, 0x88, 0, 0}, []byte{0, 1, 0, 3, 7, 8, 9}), 0).good()
	if want := bytes.Repeat([]byte{7, 8, 9}, 171)[:512]; !bytes.Equal(last(), want) {
		t.Errorf("block is %x, want the pattern", last()[:16])
	}
	h.do("04 30 00 00 00 00", make([]byte, 8), 0).good() // a long header
	if !bytes.Equal(last(), make([]byte, 512)) {
		t.Error("data is left")
	}
	h.do("04 10 00 00 00 00", []byte{0, 0, 0}, 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("04 10 00 00 00 00", []byte{0, 0, 0, 8}, 0).parameter(3, 7)    // a defect list
	h.do("04 10 00 00 00 00", []byte{0, 0x08, 0, 0}, 0).parameter(1, 3) // IP without FOV
	h.do("04 10 00 00 00 00", []byte{8, 0, 0, 0}, 0).parameter(0, 3)
	h.do("04 10 00 00 00 00", []byte{0, 0x88, 0, 0, 0, 2, 0, 0}, 0).parameter(5, 7)
	h.do("04 10 00 00 00 00", []byte{0, 0x88, 0, 0, 0, 1, 2, 1}, 0).parameter(6, 7)
	h.do("04 10 00 00 00 00", []byte{0, 0x88, 0, 0, 0, 1, 0, 9}, 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("04 80 00 00 00 00", nil, 0).field(1, 7)
	h.do("04 08 00 00 00 00", nil, 0).field(1, 3)
	h.do("04 00 00 00 03 00", nil, 0).field(4, 1)
}
