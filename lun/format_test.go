package lun_test

import (
	"bytes"
	"path/filepath"
	"sync"
	"testing"

	"lunlab/lun"
)

// selectBlocks is MODE SELECT(6) with a block descriptor only.
func (h *host) selectBlocks(blocks, length uint64) answer {
	h.t.Helper()
	return h.run([]byte{0x15, 0x10, 0, 0, 12, 0}, cat([]byte{0, 0, 0, 8}, be(4, blocks), []byte{0}, be(3, length)), 0)
}

// capacity returns how many blocks there are, and how long they are.
func (h *host) capacity() (blocks, length uint64) {
	h.t.Helper()
	b := h.do("9e 10 0000000000000000 00000020 00 00", nil, 32).good().data
	return number(b[:8]) + 1, number(b[8:12])
}

func (h *host) wantCapacity(blocks, length uint64) {
	h.t.Helper()
	if n, l := h.capacity(); n != blocks || l != length {
		h.t.Errorf("%d blocks of %d, want %d of %d", n, l, blocks, length)
	}
}

// described is what the block descriptor of MODE SENSE says.
func (h *host) described() (blocks, length uint64) {
	h.t.Helper()
	b := h.do("1a 00 08 00 ff 00", nil, 255).good().data
	return number(b[4:8]), number(b[9:12])
}

func TestFormatBlockLength(t *testing.T) {
	state := lun.StateFile(filepath.Join(t.TempDir(), "state"))
	o := lun.DiskOptions{Memory: state, PhysicalExponent: 3, LowestAligned: 8}
	s := mustMem(t, 1<<20)
	h := hostOf(t, s, o)
	other := h.other("b")
	data := pattern(4096, 1)
	h.run(transfer(0x2a, 0, 8, 0), data, 0).good()

	// Nothing changes before FORMAT UNIT, but for what MODE SENSE says.
	h.selectBlocks(0, 4096).good()
	if n, l := h.described(); n != 256 || l != 4096 {
		t.Errorf("MODE SENSE: %d blocks of %d", n, l)
	}
	h.wantCapacity(2048, 512)
	h.run(transfer(0x28, 0, 8, 0), nil, 4096).good()
	other.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCModeParametersChanged)
	other.do("00 00 00 00 00 00", nil, 0).good()
	h.do("04 10 00 00 00 00", cat([]byte{0, 0x88, 0, 0, 0, 1, 2, 0x58}, pattern(600, 7)), 0).good()
	other.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCCapacityDataHasChanged)
	h.wantCapacity(256, 4096)
	if b := h.do("9e 10 0000000000000000 00000020 00 00", nil, 32).good().data; b[13] != 0 || !bytes.Equal(b[14:16], []byte{0, 1}) {
		t.Errorf("physical blocks %x", b[13:16])
	}
	want := bytes.Repeat(pattern(600, 7), 7)[:4096]
	if a := h.run(transfer(0x28, 255, 1, 0), nil, 4096).good(); !bytes.Equal(a.data, want) {
		t.Error("the last block doesn't hold the pattern, which is longer than a block was")
	}
	h.run(transfer(0x28, 256, 1, 0), nil, 4096).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	h.run(transfer(0x2a, 255, 1, 0), data, 0).good()
	if b := h.do("12 01 b0 0040 00", nil, 64).good().data; !bytes.Equal(b[8:12], be(4, 2048)) {
		t.Errorf("longest transfer %x, want as many bytes as before", b[8:12])
	}

	// It is still so after a restart, and not if the options ask for something else.
	again := hostOf(t, s, o)
	again.wantCapacity(256, 4096)
	if a := again.run(transfer(0x28, 255, 1, 0), nil, 4096).good(); !bytes.Equal(a.data, data) {
		t.Error("the data isn't where it was")
	}
	else4k := o
	else4k.Protectable = true
	hostOf(t, mustMem(t, 1<<20), else4k).wantCapacity(2016, 512)

	again.selectBlocks(1<<32-1, 512).good()
	again.do("04 00 00 00 00 00", nil, 0).good()
	again.wantCapacity(2048, 512)
	hostOf(t, s, o).wantCapacity(2048, 512)
	again.selectBlocks(0, 520).parameter(9, 7)
	zoned, _ := newZoned(t)
	zoned.selectBlocks(0, 4096).parameter(9, 7)
	zoned.selectBlocks(0, 512).good()
}

func TestCapacity(t *testing.T) {
	state := lun.StateFile(filepath.Join(t.TempDir(), "state"))
	o := lun.DiskOptions{Memory: state, Thin: true, Protection: 1}
	s := mustMem(t, 1<<20)
	h := hostOf(t, s, o)
	other := h.other("b")
	most, _ := h.capacity()
	h.selectBlocks(most+1, 512).parameter(4, 7)
	h.run(transfer(0x2a, 999, 2, 0), pattern(1024, 1), 0).good()
	h.selectBlocks(1000, 512).good()
	h.wantCapacity(1000, 512)
	other.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCCapacityDataHasChanged)
	other.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCModeParametersChanged)
	h.run(transfer(0x28, 999, 2, 0), nil, 1024).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	if a := h.run(transfer(0x28, 999, 1, 0x20), nil, 520).good(); !bytes.Equal(a.data[:512], pattern(1024, 1)[:512]) {
		t.Error("the last block isn't what it was")
	}
	h.do("00 00 00 00 00 00", nil, 0).good()
	if err := h.disk.Grow(); err == nil {
		t.Error("it grew")
	}
	hostOf(t, s, o).wantCapacity(1000, 512)
	h.selectBlocks(0, 512).good() // as it is
	h.wantCapacity(1000, 512)

	// SANITIZE takes what is behind the end too.
	h.run(sanitizeCDB(0x02, 0), nil, 0).good()
	h.selectBlocks(1<<32-1, 512).good()
	h.wantCapacity(most, 512)
	if a := h.run(transfer(0x28, 1000, 1, 0), nil, 512).good(); !bytes.Equal(a.data, make([]byte, 512)) {
		t.Error("data behind the end outlived a SANITIZE")
	}
	// Another type of protection is remembered, too.
	h.do("04 c0 00 00 00 00", nil, 0).good()
	again := hostOf(t, s, o)
	if b := again.do("9e 10 0000000000000000 00000020 00 00", nil, 32).good().data; b[12] != 3 {
		t.Errorf("protection %#x after a restart, want type 2", b[12])
	}
	again.selectBlocks(100, 4096).good()
	again.do("04 80 00 00 00 00", nil, 0).good()
	again.wantCapacity(100, 4096)
	wire := sealed(pattern(4096, 1), 4096, 1, 99, 1)
	again.run(transfer(0x2a, 99, 1, 0x20), wire, 0).good()
	if a := again.run(transfer(0x28, 99, 1, 0x20), nil, len(wire)).good(); !bytes.Equal(a.data, wire) {
		t.Error("a block of the new length with protection information")
	}
}

// Commands that run while the block length changes end well or are refused, and
// reach no further than the store.
func TestFormatRaces(t *testing.T) {
	s := mustMem(t, 1<<20)
	d, err := lun.NewDisk(guard{s, t}, lun.DiskOptions{Thin: true, Protectable: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	h := (&host{t: t, disk: d}).other("a")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 3 {
		o := h.other(string(rune('b' + i)))
		wg.Go(func() {
			for lba := uint64(0); ; lba = (lba + 17) % 200 {
				select {
				case <-stop:
					return
				default:
				}
				o.run(transfer(0x2a, lba, 8, 0), pattern(8*4096, 1), 0)
				o.run(transfer(0x28, lba, 8, 0), nil, 8*4096)
				o.run(transfer(0x8f, lba, 8, 0), nil, 0)
				o.run(cat([]byte{0x89, 0}, be(8, lba), []byte{0, 0, 0, 1, 0, 0}), make([]byte, 2*512), 0)
				o.unmap([2]uint64{lba, 8})
				o.do("9e 12 0000000000000000 00000100 00 00", nil, 256)
			}
		})
	}
	for i := range 20 {
		length := []uint64{4096, 512}[i%2]
		for h.selectBlocks(0, length).status != lun.Good {
		}
		for h.do("04 00 00 00 00 00", nil, 0).status != lun.Good {
		}
	}
	close(stop)
	wg.Wait()
	h.run(make([]byte, 6), nil, 0)
	h.wantCapacity(2016, 512)
}

func TestIdentityIsSaved(t *testing.T) {
	o := lun.DiskOptions{Memory: lun.StateFile(filepath.Join(t.TempDir(), "state"))}
	h := newHost(t, 1<<20, o)
	h.do("a4 06 0000 0000 00000003 00 00", []byte("abc"), 0).good()
	h.do("a4 06 0000 0000 00000003 04 00", []byte("de\x00"), 0).good()
	h = newHost(t, 1<<20, o)
	h.do("a3 05 0000 0000 000000ff 00 00", nil, 255).is("00000003 616263")
	h.do("a3 05 0000 0000 000000ff 04 00", nil, 255).is("00000003 646500")
}

// A saved medium that makes no sense is as good as none.
func TestRecallMedium(t *testing.T) {
	for _, medium := range []string{
		`{"blockSize":520,"fromBlockSize":512}`, `{"blockSize":512,"protection":1,"fromBlockSize":512}`,
		`{"blockSize":4096,"fromBlockSize":4096}`, `{"blockSize":512,"protection":9,"fromBlockSize":512}`,
	} {
		h := newHost(t, 1<<20, lun.DiskOptions{Memory: memory(`{"format":1,"medium":` + medium + `}`)})
		h.wantCapacity(2048, 512)
	}
}

// memory holds what it is, and nothing that is saved.
type memory string

func (m memory) Load() ([]byte, error) { return []byte(m), nil }
func (m memory) Save([]byte) error     { return nil }
