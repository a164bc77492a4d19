package lun_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"lunlab/lun"
	"lunlab/lun/store"
	"lunlab/lun/store/mem"
)

// host is an initiator at one nexus of a disk.
type host struct {
	t    testing.TB
	disk *lun.Disk
	n    *lun.Nexus
}

// newHost makes a disk of size bytes and a nexus to it that has seen its first
// unit attention.
func newHost(t testing.TB, size int64, o lun.DiskOptions) *host {
	t.Helper()
	return hostOf(t, mustMem(t, size), o)
}

func mustMem(t testing.TB, size int64) *mem.Store {
	t.Helper()
	s, err := mem.New(size)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// thickOnly hides what a store can do beyond the least.
type thickOnly struct{ store.Store }

func hostOf(t testing.TB, s store.Store, o lun.DiskOptions) *host {
	t.Helper()
	d, err := lun.NewDisk(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	h := &host{t: t, disk: d}
	return h.other("iqn.2026-01.test:a")
}

// other returns another nexus to the same disk.
func (h *host) other(name string) *host {
	h.t.Helper()
	o := &host{t: h.t, disk: h.disk, n: &lun.Nexus{Name: name, Initiator: iscsiID(name), TargetPort: 1}}
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCPowerOnOrReset)
	return o
}

// iscsiID is the TransportID of an iSCSI initiator's port (SPC-5 7.6.4.6).
func iscsiID(name string) []byte { return iscsiText(0x45, name+",i,0x00023d000001") }

func iscsiText(first byte, text string) []byte {
	id := append([]byte{first, 0, 0, 0}, text...)
	for id = append(id, 0); len(id)%4 != 0 || len(id) < 24; {
		id = append(id, 0)
	}
	binary.BigEndian.PutUint16(id[2:], uint16(len(id)-4))
	return id
}

// answer is how a command ended.
type answer struct {
	t      testing.TB
	cdb    []byte
	status lun.Status
	sense  []byte
	data   []byte // data-in that was stored
	in     uint64 // what there was of it
	out    uint64
}

// do runs a CDB given in hexadecimal with out as data-out and room for in bytes.
func (h *host) do(cdb string, out []byte, in int) answer {
	h.t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(cdb, " ", ""))
	if err != nil {
		h.t.Fatal(err)
	}
	return h.run(b, out, in)
}

func (h *host) run(cdb, out []byte, in int) answer {
	h.t.Helper()
	room := make([]byte, in)
	c := lun.Command{Nexus: h.n, CDB: cdb, DataOut: pieces(out), DataIn: pieces(room)}
	wasOut, wasCDB := bytes.Clone(out), bytes.Clone(cdb)
	h.disk.Execute(&c)
	if !bytes.Equal(wasOut, out) || !bytes.Equal(wasCDB, cdb) {
		h.t.Errorf("%x: the unit changed the CDB or the data-out", cdb)
	}
	return answer{h.t, cdb, c.Status, c.Sense, room[:min(c.InLen, uint64(in))], c.InLen, c.OutLen}
}

// pieces cuts b unevenly, as scatter lists may be.
func pieces(b []byte) (list [][]byte) {
	for n := 7; len(b) > n; n = n*3 + 1 {
		list = append(list, b[:n])
		b = b[n:]
	}
	return append(list, b)
}

// good requires GOOD.
func (a answer) good() answer {
	a.t.Helper()
	if a.status != lun.Good {
		a.t.Fatalf("%x: status %#x, sense %x; want GOOD", a.cdb, a.status, a.sense)
	}
	return a
}

func (a answer) conflict() {
	a.t.Helper()
	if a.status != lun.ReservationConflict {
		a.t.Fatalf("%x: status %#x, sense %x; want RESERVATION CONFLICT", a.cdb, a.status, a.sense)
	}
}

// fails requires CHECK CONDITION with this sense key and code.
func (a answer) fails(key lun.SenseKey, code uint16) answer {
	a.t.Helper()
	if a.status != lun.CheckCondition || len(a.sense) < 18 || a.sense[0]&0x7f != 0x70 {
		a.t.Fatalf("%x: status %#x, sense %x; want CHECK CONDITION %x/%04x", a.cdb, a.status, a.sense, key, code)
	}
	gotKey, gotCode := lun.SenseKey(a.sense[2]&0xf), binary.BigEndian.Uint16(a.sense[12:])
	if gotKey != key || gotCode != code {
		a.t.Fatalf("%x: sense %x/%04x, want %x/%04x", a.cdb, gotKey, gotCode, key, code)
	}
	return a
}

func (a answer) attention(code uint16) { a.t.Helper(); a.fails(lun.UnitAttention, code) }

// field requires ILLEGAL REQUEST with a pointer to a field of the CDB.
func (a answer) field(at int, bit byte) {
	a.t.Helper()
	a.fails(lun.IllegalRequest, lun.ASCInvalidFieldInCDB)
	if got, want := a.sense[15:18], []byte{0xc8 | bit, byte(at >> 8), byte(at)}; !bytes.Equal(got, want) {
		a.t.Fatalf("%x: field pointer %x, want %x", a.cdb, got, want)
	}
}

// parameter is field for the parameter list.
func (a answer) parameter(at int, bit byte) {
	a.t.Helper()
	a.fails(lun.IllegalRequest, lun.ASCInvalidFieldInParameterList)
	if got, want := a.sense[15:18], []byte{0x88 | bit, byte(at >> 8), byte(at)}; !bytes.Equal(got, want) {
		a.t.Fatalf("%x: field pointer %x, want %x", a.cdb, got, want)
	}
}

// is requires that the data-in be what is given in hexadecimal.
func (a answer) is(want string) {
	a.t.Helper()
	a.good()
	if got := hex.EncodeToString(a.data); got != strings.ReplaceAll(want, " ", "") {
		a.t.Errorf("%x: data\n got %s\nwant %s", a.cdb, got, want)
	}
}

func be(n int, v uint64) []byte {
	b := binary.BigEndian.AppendUint64(nil, v)
	return b[8-n:]
}

// pattern is n bytes that differ with seed and place.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) ^ byte(i>>8) ^ seed
	}
	return b
}

func cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// calls is a store that takes a while, as it says, and counts its calls.
type calls struct {
	store.Store
	reads, writes int
}

func (c *calls) ReadAt(p []byte, off int64) (int, error) {
	c.reads++
	return c.Store.ReadAt(p, off)
}

func (c *calls) WriteAt(p []byte, off int64) (int, error) {
	c.writes++
	return c.Store.WriteAt(p, off)
}
