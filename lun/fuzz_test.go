package lun_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

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
}

// opcodesOf returns the CDBs that a disk says it supports, with the bits that
// it looks at set: a good start for all of its commands.
func opcodesOf(t testing.TB, o lun.DiskOptions) (cdbs [][]byte) {
	h := newHost(t, 1<<20, o)
	all := h.do("a3 0c 00 00 0000 0000ffff 00 00", nil, 65535).good().data[4:]
	for ; len(all) >= 8; all = all[8:] {
		one := []byte{0xa3, 0x0c, 0x03, all[0], all[2], all[3], 0, 0, 1, 0, 0, 0}
		cdbs = append(cdbs, bytes.Clone(h.run(one, nil, 256).good().data[4:]))
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
			f.Add(uint8(kind), append([]byte{byte(len(cdb))}, cdb...), bytes.Repeat([]byte{0, 0, 0, 1}, 64), uint16(512))
		}
	}
	allowed := []lun.Status{lun.Good, lun.CheckCondition, lun.ConditionMet, lun.ReservationConflict}
	f.Fuzz(func(t *testing.T, kind uint8, cdbs, data []byte, room uint16) {
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
		for i := 0; len(cdbs) > 0 && i < 32; i++ {
			n := min(int(cdbs[0]), len(cdbs)-1)
			cdb := slices.Clip(cdbs[1 : 1+n])
			cdbs = cdbs[1+n:]
			out, in := d.DataLength(cdb)
			if out > 1<<32 || in > 1<<32 {
				t.Fatalf("DataLength(%x) = %d, %d", cdb, out, in)
			}
			c := lun.Command{Nexus: nexuses[i%2], CDB: cdb, DataOut: pieces(data), DataIn: pieces(make([]byte, room))}
			d.Execute(&c)
			if !slices.Contains(allowed, c.Status) {
				t.Fatalf("%x: status %#x", cdb, c.Status)
			}
			if (c.Status == lun.CheckCondition) != (len(c.Sense) > 0) || len(c.Sense) > lun.MaxSense {
				t.Fatalf("%x: status %#x with %d bytes of sense data", cdb, c.Status, len(c.Sense))
			}
			if c.InLen > in || c.OutLen > out {
				t.Fatalf("%x moved %d out, %d in; DataLength says %d, %d", cdb, c.OutLen, c.InLen, out, in)
			}
			if i == 7 && len(data) > 0 {
				d.Notify(nexuses[0], lun.Event(data[0]%5))
			}
		}
	})
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
