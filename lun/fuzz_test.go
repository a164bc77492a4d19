package lun_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/lun/store"
	"lunlab/lun/store/mem"
)

// guard is a store that notices access outside.
type guard struct {
	*mem.Store
	t testing.TB
}

func (g guard) check(off, n int64) {
	if err := store.CheckRange(g.Size(), off, n); err != nil {
		g.t.Errorf("the unit reached out of the store: %v", err)
	}
}

func (g guard) ReadAt(p []byte, off int64) (int, error) {
	g.check(off, int64(len(p)))
	return g.Store.ReadAt(p, off)
}

func (g guard) WriteAt(p []byte, off int64) (int, error) {
	g.check(off, int64(len(p)))
	return g.Store.WriteAt(p, off)
}

func (g guard) Unmap(off, n int64) error {
	g.check(off, n)
	return g.Store.Unmap(off, n)
}

func (g guard) Extent(off, limit int64) (bool, int64, error) {
	g.check(off, 1)
	return g.Store.Extent(off, limit)
}

// fuzzKinds are the disks that FuzzExecute runs commands on.
var fuzzKinds = []lun.DiskOptions{
	{Thin: true},
	{BlockSize: 4096, Thin: true, WriteThrough: true},
	{Removable: true, PhysicalExponent: 3, Streams: 5},
	{ReadOnly: true},
	{Thin: true, Protection: 1, SoftThreshold: 4096},
	{Protection: 2, BlockSize: 4096},
	{PortGroups: []lun.PortGroup{{ID: 1, Ports: []uint16{1}}}, ExplicitAccess: true},
	{Zones: &lun.ZoneOptions{Size: 128, Conventional: 1, MaxOpen: 2}},
	{Zones: &lun.ZoneOptions{Size: 128, Conventional: 1, MaxOpen: 1, HostAware: true}},
	{Thin: true, Protection: 3, EraseTime: time.Hour},
}

// fuzzStates are the states that FuzzExecute begins in: commands by one nexus, or
// by the other one if they begin with an !, each with its data-out behind a colon.
var fuzzStates = []string{
	"",
	"1b 00 00 00 00 00",  // stopped
	"1b 00 00 00 02 00",  // ejected, where that can be
	"!16 00 00 00 00 00", // reserved
	"!5f 00 00 0000 00000018 00: 0000000000000000 0000000000000007 0000000000000000, !5f 01 03 0000 00000018 00: 0000000000000007 0000000000000000 0000000000000000",
	"04 10 00 00 00 00: 00820000", // formatting
	"48 83 0000000000 0000 00",    // sanitizing, where that can be
	"04 d0 00 00 00 00: 00020000", // of another type of protection
	"15 10 0000 0c 00: 00000008 00000000 00001000, 04 10 00 00 00 00: 00020000",                                         // of other blocks
	"15 10 0000 0c 00: 00000008 00000064 00000200",                                                                      // shorter
	"15 10 0000 10 00: 00000000 0a0a 04100840000000000000",                                                              // D_SENSE, SWP
	"15 10 0000 18 00: 00000000 0812 000000000000000000000000000000000000",                                              // no write cache
	"3f 40 00000000 00 0000 00",                                                                                         // a bad block
	"42 01 00000000 00 0018 00: 0016 0010 00000000 0000000000000000 00000040 00000000",                                  // anchored
	"83 10 00000000 00000001 00000020 00 00: 001e 00 00 00000000 00000000 0000 0010 0000000000000000 00000008 00000000", // a token
	"83 11 00000000 00000001 00000228 00 00: 0226 01 0000000000 0000000000000000 ffff000100000001f8",                    // short data
}

// prepare brings a disk into a state.
func prepare(t testing.TB, d *lun.Disk, nexuses []*lun.Nexus, state string) {
	unhexed := func(s string) []byte { return unhex(t, strings.ReplaceAll(strings.TrimSpace(s), " ", "")) }
	for _, n := range nexuses {
		d.Execute(&lun.Command{Nexus: n, CDB: make([]byte, 6)})
	}
	for _, s := range strings.Split(state, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		n := nexuses[0]
		if s[0] == '!' {
			n, s = nexuses[1], s[1:]
		}
		cdb, data, _ := strings.Cut(s, ":")
		d.Execute(&lun.Command{Nexus: n, CDB: unhexed(cdb), DataOut: [][]byte{unhexed(data)}, Cancel: cancelled})
	}
}

// cancelled ends what waits: an erasure goes on all the same.
var cancelled = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// maxFuzzAlloc is more than what a chain of commands may allocate, in bytes: each
// holds its data at the most, which the transport has bounded, a megabyte for
// WRITE ATOMIC, and the memory store what is written to it.
const maxFuzzAlloc = 128 << 20

// opcodesOf returns the CDBs that a disk says it supports, with the bits that
// it looks at set: a good start for all of its commands.
func opcodesOf(t testing.TB, o lun.DiskOptions) (cdbs [][]byte) {
	for _, c := range commandsOf(t, o) {
		cdbs = append(cdbs, c.usage)
	}
	return cdbs
}

// FuzzExecute runs a chain of commands, from two nexuses, on a disk of each
// kind. The input is a list of CDBs (each a length and so many bytes), and data
// for all of them.
func FuzzExecute(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for kind, o := range fuzzKinds {
		for _, cdb := range opcodesOf(f, o) {
			for i := range cdb[1:] {
				// Small fields find more than large ones.
				if i > 0 && i < len(cdb)-2 && r.IntN(3) > 0 {
					cdb[i] = 0
				}
			}
			f.Add(uint8(kind), uint8(r.IntN(len(fuzzStates))), append([]byte{byte(len(cdb))}, cdb...), bytes.Repeat([]byte{0, 0, 0, 1}, 64), uint16(512))
		}
	}
	allowed := []lun.Status{lun.Good, lun.CheckCondition, lun.ConditionMet, lun.ReservationConflict}
	f.Fuzz(func(t *testing.T, kind, state uint8, cdbs, data []byte, room uint16) {
		s, err := mem.NewLimited(1<<20, 768<<10)
		if err != nil {
			t.Fatal(err)
		}
		d, err := lun.NewDisk(guard{s, t}, fuzzKinds[int(kind)%len(fuzzKinds)])
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		nexuses := []*lun.Nexus{{Name: "a", Initiator: iscsiID("a"), TargetPort: 1}, {Name: "b"}}
		prepare(t, d, nexuses, fuzzStates[int(state)%len(fuzzStates)])
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := 0; len(cdbs) > 0 && i < 32; i++ {
			n := min(int(cdbs[0]), len(cdbs)-1)
			cdb := slices.Clip(cdbs[1 : 1+n])
			cdbs = cdbs[1+n:]
			out, in := d.DataLength(cdb)
			if out > 1<<32 || in > 1<<32 {
				t.Fatalf("DataLength(%x) = %d, %d", cdb, out, in)
			}
			c := lun.Command{Nexus: nexuses[i%2], CDB: cdb, DataOut: pieces(data), DataIn: pieces(make([]byte, room))}
			if len(cdb) > 0 && (cdb[0] == 0x04 || cdb[0] == 0x48) {
				c.Cancel = cancelled // it may take an hour
			}
			d.Execute(&c)
			if !slices.Contains(allowed, c.Status) {
				t.Fatalf("%x: status %#x", cdb, c.Status)
			}
			if (c.Status == lun.CheckCondition) != (len(c.Sense) > 0) || len(c.Sense) > lun.MaxSense {
				t.Fatalf("%x: status %#x with %d bytes of sense data", cdb, c.Status, len(c.Sense))
			}
			if len(c.Sense) > 0 && !plausible(c.Sense) {
				t.Fatalf("%x: sense data %x", cdb, c.Sense)
			}
			if c.InLen > in || c.OutLen > out {
				t.Fatalf("%x moved %d out, %d in; DataLength says %d, %d", cdb, c.OutLen, c.InLen, out, in)
			}
			if i == 7 && len(data) > 0 {
				d.Notify(nexuses[0], lun.Event(data[0]%5))
			}
		}
		if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > maxFuzzAlloc {
			t.Fatalf("%d bytes were allocated", after.TotalAlloc-before.TotalAlloc)
		}
	})
}

// plausible tells whether sense data is of one of the two formats, has a sense key
// that a disk gives and an additional sense code with it.
func plausible(b []byte) bool {
	if len(b) < 8 {
		return false
	}
	key := b[1]
	var code []byte
	switch b[0] & 0x7f {
	case 0x70:
		if len(b) < 18 {
			return false
		}
		key, code = b[2], b[12:14]
	case 0x72:
		code = b[2:4]
	default:
		return false
	}
	switch k := lun.SenseKey(key & 0xf); k {
	case lun.NotReady, lun.MediumError, lun.HardwareError, lun.IllegalRequest, lun.UnitAttention, lun.DataProtect, lun.Miscompare:
		return !bytes.Equal(code, []byte{0, 0})
	case lun.CopyAborted, lun.AbortedCommand:
		return true
	case lun.RecoveredError:
		return bytes.Equal(code, []byte{0x1c, 0}) || bytes.Equal(code, []byte{0x5d, 0xff})
	case lun.NoSense:
		return bytes.Equal(code, []byte{0x5d, 0xff})
	}
	return false
}

// FuzzSense checks what sense data of either format says.
func FuzzSense(f *testing.F) {
	f.Add(uint8(5), uint16(0x2400), uint64(1<<40), true, false)
	f.Fuzz(func(t *testing.T, key uint8, code uint16, info uint64, hasInfo, deferred bool) {
		s := lun.Sense{Key: lun.SenseKey(key & 15), Code: code, Info: info, HasInfo: hasInfo, Deferred: deferred, Specific: [3]byte{0x80, 1, 2}}
		fixed, desc := s.AppendFixed(nil), s.AppendDescriptor(nil)
		if lun.SenseKey(fixed[2]&15) != s.Key || lun.SenseKey(desc[1]) != s.Key || binary.BigEndian.Uint16(fixed[12:]) != code || binary.BigEndian.Uint16(desc[2:]) != code {
			t.Errorf("%+v: %x, %x", s, fixed, desc)
		}
		if int(fixed[7])+8 != len(fixed) || int(desc[7])+8 != len(desc) || len(desc) > lun.MaxSense {
			t.Errorf("%+v: bad length in %x or %x", s, fixed, desc)
		}
	})
}
