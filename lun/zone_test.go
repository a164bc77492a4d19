package lun_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"testing"

	"lunlab/lun"
	"lunlab/lun/store/mem"
)

// A disk of 8 zones of 64 blocks, of which 2 are conventional and 3 may be open.
func newZoned(t testing.TB) (*host, *mem.Store) {
	s := mustMem(t, 8*64*512+1000)
	return hostOf(t, s, lun.DiskOptions{Zones: &lun.ZoneOptions{Size: 64, Conventional: 2, MaxOpen: 3}}), s
}

// zones returns the conditions of the zones from lba on that the options name,
// as a digit each, and their write pointers.
func (h *host) zones(lba uint64, options byte) (conditions string, pointers []uint64) {
	h.t.Helper()
	b := h.run(cat([]byte{0x95, 0}, be(8, lba), be(4, 4096), []byte{options, 0}), nil, 4096).good().data
	if int(binary.BigEndian.Uint32(b))+64 != len(b) {
		h.t.Fatalf("zone list length %d of %d bytes", binary.BigEndian.Uint32(b), len(b))
	}
	for b = b[64:]; len(b) > 0; b = b[64:] {
		conditions += string("0123456789abcdef"[b[1]>>4])
		pointers = append(pointers, binary.BigEndian.Uint64(b[24:]))
	}
	return conditions, pointers
}

func (h *host) wantZones(want string) {
	h.t.Helper()
	if got, _ := h.zones(0, 0); got != want {
		h.t.Fatalf("zones are %s, want %s", got, want)
	}
}

// zone is OPEN, CLOSE, FINISH ZONE or RESET WRITE POINTER; all ones for all.
func (h *host) zone(action byte, lba uint64) answer {
	h.t.Helper()
	all := byte(0)
	if lba == 1<<64-1 {
		lba, all = 0, 1
	}
	return h.run(cat([]byte{0x94, action}, be(8, lba), []byte{0, 0, 0, 0, all, 0}), nil, 0)
}

const (
	zClose, zFinish, zOpen, zReset = 1, 2, 3, 4
	allZones                       = 1<<64 - 1
)

func (h *host) writeZone(lba uint64, n uint32) answer {
	h.t.Helper()
	return h.run(transfer(0x8a, lba, n, 0), pattern(int(n)*512, byte(lba)), 0)
}

func TestZonedIdentity(t *testing.T) {
	h, _ := newZoned(t)
	if b := h.do("12 00 00 00ff 00", nil, 255).good().data; b[0] != 0x14 || b[5] != 0 {
		t.Errorf("standard data begins with %x", b[:8])
	}
	h.do("12 01 b6 00ff 00", nil, 255).is("14b6003c 01000000 ffffffff ffffffff 00000003" + strings.Repeat("00", 44))
	if b := h.do("9e 10 0000000000000000 00000020 00 00", nil, 32).good().data; binary.BigEndian.Uint64(b) != 511 || b[12] != 0x10 {
		t.Errorf("READ CAPACITY(16): %x", b)
	}
	h.do("12 01 8f 00ff 00", nil, 255).field(2, 7)
	for _, code := range []byte{0x42, 0x8b, 0x9c, 0x83, 0x3f, 0x07} {
		h.run(cat([]byte{code}, make([]byte, 15)), nil, 0).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)
	}
	plain := newHost(t, 1<<20, lun.DiskOptions{})
	plain.run(make([]byte, 16), nil, 0)
	plain.run(cat([]byte{0x95}, make([]byte, 15)), nil, 0).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)
	plain.do("12 01 b6 00ff 00", nil, 255).field(2, 7)
}

func TestZoneWrites(t *testing.T) {
	h, s := newZoned(t)
	h.wantZones("00111111")
	h.writeZone(50, 64).good() // conventional zones may be crossed
	h.writeZone(120, 16).fails(lun.IllegalRequest, lun.ASCWriteBoundaryViolation)
	h.writeZone(129, 1).fails(lun.IllegalRequest, lun.ASCUnalignedWrite)
	h.writeZone(128, 8).good()
	h.writeZone(128, 8).fails(lun.IllegalRequest, lun.ASCUnalignedWrite)
	h.writeZone(136, 8).good()
	h.wantZones("00211111")
	if _, p := h.zones(128, 0x82); len(p) != 1 || p[0] != 144 {
		t.Errorf("write pointers %d, want 144", p)
	}
	h.writeZone(144, 49).fails(lun.IllegalRequest, lun.ASCWriteBoundaryViolation)
	h.run(transfer(0x8a, 144, 4, 0), make([]byte, 3*512), 0).fails(lun.IllegalRequest, lun.ASCInvalidFieldInCDB)
	h.writeZone(144, 48).good()
	h.wantZones("00e11111")
	h.writeZone(191, 1).fails(lun.IllegalRequest, lun.ASCInvalidFieldInCDB)
	h.run(transfer(0x2e, 192, 4, 0), pattern(2048, 1), 0).good() // WRITE AND VERIFY
	h.wantZones("00e21111")
	// What was written is there, what wasn't is zeros.
	if a := h.run(transfer(0x88, 128, 8, 0), nil, 4096).good(); !bytes.Equal(a.data, pattern(4096, 128)) {
		t.Error("the first blocks of the zone aren't what was written")
	}
	if a := h.run(transfer(0x88, 190, 10, 0), nil, 5120).good(); !bytes.Equal(a.data[6*512:], make([]byte, 2048)) {
		t.Error("blocks behind the write pointer aren't zeros")
	}
	used := s.Used()
	h.zone(zReset, allZones).good()
	h.wantZones("00111111")
	if a := h.run(transfer(0x88, 128, 8, 0), nil, 4096).good(); !bytes.Equal(a.data, make([]byte, 4096)) {
		t.Error("blocks of a zone that was reset aren't zeros")
	}
	if s.Used() >= used {
		t.Errorf("%d bytes are used after the reset, %d before", s.Used(), used)
	}
	if a := h.run(transfer(0x88, 50, 64, 0), nil, 64*512).good(); !bytes.Equal(a.data, pattern(64*512, 50)) {
		t.Error("the reset reached the conventional zones")
	}
}

// WRITE SAME and COMPARE AND WRITE move write pointers as any write does.
func TestZoneSame(t *testing.T) {
	h, _ := newZoned(t)
	block, zeros := pattern(512, 1), make([]byte, 512)
	same := func(lba, n uint64) answer {
		t.Helper()
		return h.run(cat([]byte{0x93, 0}, be(8, lba), be(4, n), []byte{0, 0}), block, 0)
	}
	compare := func(lba uint64, old []byte) answer {
		t.Helper()
		return h.run(cat([]byte{0x89, 0}, be(8, lba), []byte{0, 0, 0, 1, 0, 0}), cat(old, block), 0)
	}
	same(60, 8).good()
	same(120, 16).fails(lun.IllegalRequest, lun.ASCWriteBoundaryViolation)
	same(130, 1).fails(lun.IllegalRequest, lun.ASCUnalignedWrite)
	same(128, 8).good()
	same(128, 8).fails(lun.IllegalRequest, lun.ASCUnalignedWrite)
	h.do("93 01 0000000000000088 00000004 00 00", nil, 0).good() // NDOB
	compare(140, block).fails(lun.Miscompare, lun.ASCMiscompareDuringVerify)
	compare(140, zeros).good()
	compare(128, block).fails(lun.IllegalRequest, lun.ASCUnalignedWrite)
	if _, p := h.zones(128, 0x82); len(p) != 1 || p[0] != 141 {
		t.Errorf("write pointers %d, want 141", p)
	}
	want := cat(bytes.Repeat(block, 8), make([]byte, 4*512), block)
	if a := h.run(transfer(0x88, 128, 13, 0), nil, len(want)).good(); !bytes.Equal(a.data, want) {
		t.Error("the zone doesn't hold what was written")
	}
	same(141, 51).good()
	h.wantZones("00e11111")
}

func TestZoneActions(t *testing.T) {
	h, _ := newZoned(t)
	h.zone(zOpen, 128).good()
	h.wantZones("00311111")
	h.zone(zClose, 128).good() // nothing was written
	h.wantZones("00111111")
	h.writeZone(128, 4).good()
	h.zone(zClose, 128).good()
	h.zone(zClose, 128).good()
	h.zone(zClose, 192).good()
	h.wantZones("00411111")
	h.writeZone(132, 4).good()
	h.zone(zOpen, 128).good()
	h.wantZones("00311111")
	h.zone(zFinish, 128).good()
	h.zone(zOpen, 128).good()
	h.zone(zFinish, 256).good() // an empty one
	h.wantZones("00e1e111")
	h.zone(zReset, 256).good()
	h.wantZones("00e11111")
	h.zone(zReset, 0).field(2, 7)
	h.zone(zReset, 129).field(2, 7)
	h.zone(zReset, 512).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	h.run(cat([]byte{0x94, 5}, make([]byte, 14)), nil, 0).field(1, 4)
	// All of those that it makes a difference to.
	h.writeZone(192, 4).good()
	h.writeZone(256, 4).good()
	h.zone(zClose, allZones).good()
	h.wantZones("00e44111")
	h.zone(zOpen, allZones).good()
	h.wantZones("00e33111")
	h.zone(zFinish, allZones).good()
	h.wantZones("00eee111")
	h.do("04 00 00 00 00 00", nil, 0).good()
	h.wantZones("00111111")
	ro := hostOf(t, mustMem(t, 1<<20), lun.DiskOptions{ReadOnly: true, Zones: &lun.ZoneOptions{Size: 64}})
	ro.zone(zReset, 0).fails(lun.DataProtect, lun.ASCWriteProtected)
}

func TestZoneResources(t *testing.T) {
	h, _ := newZoned(t)
	h.zone(zOpen, 128).good()
	h.zone(zOpen, 192).good()
	h.writeZone(256, 4).good()
	h.writeZone(320, 4).good() // in place of the one that was opened implicitly
	h.wantZones("00334211")
	h.zone(zOpen, 256).good()
	h.wantZones("00333411")
	h.zone(zOpen, 320).fails(lun.DataProtect, lun.ASCInsufficientZoneResources)
	h.writeZone(324, 4).fails(lun.DataProtect, lun.ASCInsufficientZoneResources)
	h.zone(zFinish, 320).fails(lun.DataProtect, lun.ASCInsufficientZoneResources)
	h.zone(zOpen, allZones).fails(lun.DataProtect, lun.ASCInsufficientZoneResources)
	h.wantZones("00333411")
	h.writeZone(256+4, 60).good() // full: room for another
	h.writeZone(324, 4).good()
	h.wantZones("0033e211")
}

func TestReportZones(t *testing.T) {
	h, _ := newZoned(t)
	h.writeZone(128, 64).good()
	h.writeZone(192, 1).good()
	h.zone(zOpen, 256).good()
	for _, c := range []struct {
		lba     uint64
		options byte
		want    string
	}{
		{0, 0x00, "00e23111"}, {130, 0x00, "e23111"}, {0, 0x01, "111"}, {0, 0x02, "2"}, {0, 0x03, "3"}, {0, 0x04, ""},
		{0, 0x05, "e"}, {0, 0x06, ""}, {0, 0x11, ""}, {0, 0x3f, "00"}, {0, 0x3e, "00e23111"}, {511, 0x80, "1"},
	} {
		if got, _ := h.zones(c.lba, c.options); got != c.want {
			t.Errorf("zones from %d on with options %#x are %q, want %q", c.lba, c.options, got, c.want)
		}
	}
	// The length is of all that match, or with PARTIAL of those that fit.
	for _, c := range []struct {
		partial byte
		length  uint32
	}{{0, 512}, {0x80, 128}} {
		a := h.run(cat([]byte{0x95, 0}, be(8, 0), be(4, 64+2*64+63), []byte{c.partial, 0}), nil, 4096).good()
		if got := binary.BigEndian.Uint32(a.data); got != c.length || len(a.data) != 192 {
			t.Errorf("PARTIAL %#x: zone list length %d in %d bytes, want %d", c.partial, got, len(a.data), c.length)
		}
	}
	a := h.run(cat([]byte{0x95, 0}, be(8, 128), be(4, 128), []byte{0, 0}), nil, 4096).good()
	if want := cat([]byte{2, 0xe0, 0, 0, 0, 0, 0, 0}, be(8, 64), be(8, 128), be(8, 1<<64-1), make([]byte, 32)); !bytes.Equal(a.data[64:], want) || a.data[4] != 3 {
		t.Errorf("descriptor %x, want %x", a.data[64:], want)
	}
	h.run(cat([]byte{0x95, 0}, be(8, 512), be(4, 64), []byte{0, 0}), nil, 64).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	h.run(cat([]byte{0x95, 0}, be(8, 0), be(4, 64), []byte{0x20, 0}), nil, 64).field(14, 5)
}

// Writers that race for the write pointer: each block is written once.
func TestZoneWriters(t *testing.T) {
	h := hostOf(t, mustMem(t, 1<<20), lun.DiskOptions{Zones: &lun.ZoneOptions{Size: 256}})
	var wg sync.WaitGroup
	won := make([]int, 4)
	for w := range won {
		o := &host{t: t, disk: h.disk, n: &lun.Nexus{Name: string(rune('a' + w))}}
		o.run(make([]byte, 6), nil, 0)
		wg.Go(func() {
			for lba := uint64(0); lba < 256; {
				switch a := o.run(transfer(0x8a, lba, 1, 0), bytes.Repeat([]byte{byte(w)}, 512), 0); a.status {
				case lun.Good:
					won[w]++
					lba++
				default:
					lba++ // another was faster; where it is now is found by trying
				}
				if lba%64 == 0 {
					o.run(cat([]byte{0x95, 0}, be(8, 0), be(4, 128), []byte{0, 0}), nil, 128)
				}
			}
		})
	}
	wg.Wait()
	_, p := h.zones(0, 0x80)
	sum := 0
	for _, n := range won {
		sum += n
	}
	if p[0] != uint64(sum) && !(sum == 256 && p[0] == 1<<64-1) {
		t.Errorf("%d writes went through, and the write pointer is at %d", sum, p[0])
	}
}

func TestZoneErrors(t *testing.T) {
	for _, o := range []lun.DiskOptions{
		{Zones: &lun.ZoneOptions{}},
		{Zones: &lun.ZoneOptions{Size: 4096}},
		{Zones: &lun.ZoneOptions{Size: 64, Conventional: 33}},
		{Zones: &lun.ZoneOptions{Size: 64, MaxOpen: -1}},
		{Zones: &lun.ZoneOptions{Size: 64}, Thin: true},
		{Zones: &lun.ZoneOptions{Size: 64}, Protection: 1},
	} {
		if _, err := lun.NewDisk(mustMem(t, 1<<20), o); err == nil {
			t.Errorf("NewDisk took %+v", o)
		}
	}
}

// wantDescriptors compares the types, conditions, NON_SEQ bits and write pointers
// of all zones, as in "1:0 3:4! 72": a type, a condition, a ! and a pointer.
func (h *host) wantDescriptors(want string) {
	h.t.Helper()
	b := h.run(cat([]byte{0x95, 0}, be(8, 0), be(4, 4096), []byte{0, 0}), nil, 4096).good().data[64:]
	got := ""
	for ; len(b) >= 64; b = b[64:] {
		got += fmt.Sprintf(" %d:%x", b[0], b[1]>>4)
		if b[1]&2 != 0 {
			got += "!"
		}
		if p := number(b[24:32]); p != 1<<64-1 {
			got += fmt.Sprint("@", p)
		}
	}
	if got = strings.TrimPrefix(got, " "); got != want {
		h.t.Errorf("zones %s, want %s", got, want)
	}
}

func TestHostAware(t *testing.T) {
	h := newHost(t, 4*64*512, lun.DiskOptions{Zones: &lun.ZoneOptions{Size: 64, Conventional: 1, MaxOpen: 1, HostAware: true}})
	if b := h.do("12 00 00 0024 00", nil, 36).good().data; b[0] != 0 {
		t.Errorf("device type %d", b[0])
	}
	if b := h.do("12 01 b1 0040 00", nil, 64).good().data; b[8]&0x30 != 0x10 {
		t.Errorf("ZONED is %d", b[8]>>4&3)
	}
	if b := h.do("12 01 b6 0040 00", nil, 64).good().data; !bytes.Equal(b[4:20], cat([]byte{0, 0, 0, 0}, be(4, 1), be(4, 1<<32-1), be(4, 1<<32-1))) {
		t.Errorf("zoned characteristics %x", b)
	}
	h.wantDescriptors("1:0 3:1@64 3:1@128 3:1@192")
	h.writeZone(64, 8).good()
	h.writeZone(72, 8).good()
	h.writeZone(140, 4).good() // ahead of the pointer, with more open than is best
	h.writeZone(192, 8).good()
	h.wantDescriptors("1:0 3:2@80 3:2!@144 3:2@200")
	h.writeZone(64, 4).good() // behind the pointer
	h.wantDescriptors("1:0 3:2!@80 3:2!@144 3:2@200")
	h.writeZone(190, 20).good() // over a boundary
	h.wantDescriptors("1:0 3:2!@80 3:e! 3:2!@210")
	h.writeZone(128, 1).good() // to one that is full
	if b := h.run(cat([]byte{0x95, 0}, be(8, 0), be(4, 64), []byte{0x11, 0}), nil, 64).good().data; number(b[:4]) != 3*64 {
		t.Errorf("%d zones have NON_SEQ", number(b[:4])/64)
	}
	h.zone(4, 128).good()
	h.wantDescriptors("1:0 3:2!@80 3:1@128 3:2!@210")
	h.zone(2, 64).good()
	h.wantDescriptors("1:0 3:e! 3:1@128 3:2!@210")
	h.writeZone(0, 80).good() // from a conventional one on
	h.wantDescriptors("1:0 3:e! 3:1@128 3:2!@210")
	if a := h.run(transfer(0x28, 190, 20, 0), nil, 20*512).good(); !bytes.Equal(a.data[2*512:], pattern(20*512, 190)[2*512:]) {
		t.Error("what was written over a boundary isn't there")
	}
}

// A store that outlives the disk has the write pointers too.
func TestZonesAreKept(t *testing.T) {
	for _, aware := range []bool{false, true} {
		s := thickOnly{mustMem(t, 4*64*512+512)}
		o := lun.DiskOptions{Zones: &lun.ZoneOptions{Size: 64, Conventional: 1, HostAware: aware}}
		h := hostOf(t, s, o)
		kind := map[bool]string{false: "2", true: "3"}[aware]
		want := func(h *host, zones string) {
			t.Helper()
			h.wantDescriptors(strings.ReplaceAll(zones, "T", kind))
		}
		h.writeZone(64, 8).good()
		h.zone(3, 128).good()
		h.writeZone(192, 8).good()
		h.zone(2, 192).good()
		want(h, "1:0 T:2@72 T:3@128 T:e")
		h = hostOf(t, s, o) // as after a kill: the first wasn't closed
		want(h, "1:0 T:4@72 T:1@128 T:e")
		if a := h.run(transfer(0x28, 64, 8, 0), nil, 4096).good(); !bytes.Equal(a.data, pattern(4096, 64)) {
			t.Error("the data isn't there")
		}
		h.writeZone(72, 56).good()
		h.zone(4, 192).good()
		if aware {
			h.writeZone(200, 8).good()
			want(hostOf(t, s, o), "1:0 T:e T:1@128 T:4!@208")
		} else {
			want(hostOf(t, s, o), "1:0 T:e T:1@128 T:1@192")
		}
		h.do("04 00 00 00 00 00", nil, 0).good()
		want(hostOf(t, s, o), "1:0 T:1@64 T:1@128 T:1@192")
		if _, err := s.WriteAt([]byte{1}, 4*64*512+16); err != nil {
			t.Fatal(err)
		}
		if _, err := lun.NewDisk(s, o); err == nil {
			t.Error("NewDisk took a write pointer beyond its zone")
		}
	}
	// Where the table takes the room of a zone, there is one less.
	if d, err := lun.NewDisk(thickOnly{mustMem(t, 4*64*512)}, lun.DiskOptions{Zones: &lun.ZoneOptions{Size: 64}}); err != nil || d.Blocks() != 3*64 {
		t.Errorf("%v", err)
	}
}
