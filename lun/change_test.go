package lun_test

import (
	"bytes"
	"strings"
	"testing"

	"lunlab/lun"
	"lunlab/lun/store/mem"
	"lunlab/lun/store/null"
)

const (
	inquiry      = "12 00 00 00ff 00"
	testReady    = "00 00 00 00 00 00"
	readCapacity = "25 00 00000000 0000 00 00"
)

func TestChange(t *testing.T) {
	s, err := mem.NewLimited(16<<20, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	h := hostOf(t, s, lun.DiskOptions{Thin: true})
	o := h.other("b")
	change := func(do func(s *lun.Settings), codes ...uint16) {
		t.Helper()
		set := h.disk.Settings()
		do(&set)
		if err := h.disk.Change(set); err != nil {
			t.Fatal(err)
		}
		for _, x := range []*host{h, o} {
			for _, code := range codes {
				x.do(testReady, nil, 0).attention(code)
			}
			x.do(testReady, nil, 0).good()
		}
	}
	change(func(s *lun.Settings) {})
	change(func(s *lun.Settings) { s.Revision = "NEW" }, lun.ASCInquiryDataHasChanged)
	if got := h.do(inquiry, nil, 255).good().data[32:36]; string(got) != "NEW " {
		t.Errorf("revision %q", got)
	}

	change(func(s *lun.Settings) { s.ReadOnly = true }, lun.ASCModeParametersChanged)
	h.run(transfer(0x2a, 0, 1, 0), make([]byte, 512), 0).fails(lun.DataProtect, lun.ASCWriteProtected)
	change(func(s *lun.Settings) { s.ReadOnly = false }, lun.ASCModeParametersChanged)
	h.run(transfer(0x2a, 0, 1, 0), make([]byte, 512), 0).good()

	change(func(s *lun.Settings) { s.WriteThrough = true }, lun.ASCModeParametersChanged)
	if got := h.modePage(8, 0)[2]; got != 0 {
		t.Errorf("caching flags %#x with the cache off", got)
	}
	change(func(s *lun.Settings) { s.WriteThrough, s.SoftThreshold = false, 4<<20 }, lun.ASCModeParametersChanged)
	if got := h.modePage(8, 0)[2]; got != 4 {
		t.Errorf("caching flags %#x with the cache on", got)
	}
	if got := h.disk.Options(); got.Revision != "NEW" || got.SoftThreshold != 4<<20 {
		t.Errorf("Options() = %+v", got)
	}
	// All or nothing.
	bad := h.disk.Settings()
	bad.Revision, bad.ReadOnly = "LONGER", true
	if err := h.disk.Change(bad); err == nil || h.disk.Settings().ReadOnly {
		t.Errorf("Change = %v; read-only %v", err, h.disk.Settings().ReadOnly)
	}
}

// What an initiator saved stays saved.
func TestChangeKeepsSaved(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{WriteThrough: true})
	h.selectPage(1, "0812 040000000000000000000000000000000000").good()
	set := h.disk.Settings()
	set.ReadOnly = true
	if err := h.disk.Change(set); err != nil {
		t.Fatal(err)
	}
	h.do(testReady, nil, 0).attention(lun.ASCModeParametersChanged)
	for _, control := range []string{"08", "c8"} {
		if got := h.do("1a 08 "+control+" 00 ff 00", nil, 255).good().data[6]; got != 4 {
			t.Errorf("caching flags %#x, want those that were saved", got)
		}
	}
}

func TestGrow(t *testing.T) {
	s := mustMem(t, 1<<20)
	h := hostOf(t, s, lun.DiskOptions{})
	h.run(transfer(0x2a, 2048, 1, 0), make([]byte, 512), 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	if err := h.disk.Grow(); err != nil {
		t.Fatal(err)
	}
	h.do(testReady, nil, 0).good()
	if err := s.Resize(3 << 20); err != nil {
		t.Fatal(err)
	}
	if err := h.disk.Grow(); err != nil {
		t.Fatal(err)
	}
	h.do(readCapacity, nil, 8).attention(lun.ASCCapacityDataHasChanged)
	h.do(readCapacity, nil, 8).is("000017ff 00000200")
	want := pattern(512, 7)
	h.run(transfer(0x2a, 6143, 1, 0), want, 0).good()
	if got := h.run(transfer(0x28, 6143, 1, 0), nil, 512).good().data; !bytes.Equal(got, want) {
		t.Error("what was written to the last block isn't there")
	}
	if err := s.Resize(1 << 20); err != nil {
		t.Fatal(err)
	}
	if err := h.disk.Grow(); err == nil || h.disk.Blocks() != 6144 {
		t.Errorf("Grow with a smaller store: %v, %d blocks", err, h.disk.Blocks())
	}
}

func TestCannotGrow(t *testing.T) {
	for want, o := range map[string]lun.DiskOptions{
		"protection": {Protection: 1}, "zoned": {Zones: &lun.ZoneOptions{Size: 256}},
	} {
		if err := newHost(t, 1<<20, o).disk.Grow(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	s, err := null.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if err := hostOf(t, &still{s}, lun.DiskOptions{}).disk.Grow(); err == nil {
		t.Error("a store without Resize grew")
	}
}

// still hides that a store can be resized.
type still struct{ s *null.Store }

func (s *still) ReadAt(p []byte, off int64) (int, error)  { return s.s.ReadAt(p, off) }
func (s *still) WriteAt(p []byte, off int64) (int, error) { return s.s.WriteAt(p, off) }
func (s *still) Size() int64                              { return s.s.Size() }
func (s *still) Sync() error                              { return s.s.Sync() }
func (s *still) Close() error                             { return s.s.Close() }
