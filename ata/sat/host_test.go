package sat_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"lunlab/ata"
	"lunlab/ata/sat"
	"lunlab/lun"
	"lunlab/lun/store"
	"lunlab/lun/store/mem"
)

// host is an initiator at one nexus of a unit.
type host struct {
	t     testing.TB
	unit  *sat.Unit
	drive *ata.Drive
	n     *lun.Nexus
}

func newHost(t testing.TB, size int64, o ata.Options) *host {
	t.Helper()
	s, err := mem.New(size)
	if err != nil {
		t.Fatal(err)
	}
	return hostOf(t, s, o)
}

// hostOf makes a unit and a nexus to it that has seen its first unit attention.
func hostOf(t testing.TB, s store.Store, o ata.Options) *host {
	t.Helper()
	d, err := ata.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	u, err := sat.New(d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	h := &host{t: t, unit: u, drive: d}
	return h.other("a")
}

// other returns another nexus to the same unit.
func (h *host) other(name string) *host {
	h.t.Helper()
	o := &host{h.t, h.unit, h.drive, &lun.Nexus{Name: name, TargetPort: 1}}
	o.do("00 00 00 00 00 00", nil, 0).fails(lun.UnitAttention, lun.ASCPowerOnOrReset)
	return o
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

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// do runs a CDB given in hexadecimal with out as data-out and room for in bytes.
func (h *host) do(cdb string, out []byte, in int) answer {
	h.t.Helper()
	return h.run(unhex(h.t, cdb), out, in)
}

func (h *host) run(cdb, out []byte, in int) answer {
	h.t.Helper()
	room := make([]byte, in)
	c := lun.Command{Nexus: h.n, CDB: cdb, DataOut: pieces(out), DataIn: pieces(room)}
	h.unit.Execute(&c)
	return answer{h.t, cdb, c.Status, bytes.Clone(c.Sense), room[:min(c.InLen, uint64(in))], c.InLen, c.OutLen}
}

// pieces cuts b unevenly, as scatter lists may be.
func pieces(b []byte) (list [][]byte) {
	for n := 7; len(b) > n; n = n*3 + 1 {
		list = append(list, b[:n])
		b = b[n:]
	}
	return append(list, b)
}

func (a answer) good() answer {
	a.t.Helper()
	if a.status != lun.Good {
		a.t.Fatalf("%x: status %#x, sense %x; want GOOD", a.cdb, a.status, a.sense)
	}
	return a
}

// fails requires CHECK CONDITION with this sense key and code, in either format.
func (a answer) fails(key lun.SenseKey, code uint16) answer {
	a.t.Helper()
	if a.status != lun.CheckCondition || len(a.sense) < 8 {
		a.t.Fatalf("%x: status %#x, sense %x; want CHECK CONDITION %x/%04x", a.cdb, a.status, a.sense, key, code)
	}
	gotKey, gotCode := lun.SenseKey(a.sense[1]&0xf), binary.BigEndian.Uint16(a.sense[2:])
	if a.sense[0]&0x7f == 0x70 {
		gotKey, gotCode = lun.SenseKey(a.sense[2]&0xf), binary.BigEndian.Uint16(a.sense[12:])
	}
	if gotKey != key || gotCode != code {
		a.t.Fatalf("%x: sense %x/%04x, want %x/%04x", a.cdb, gotKey, gotCode, key, code)
	}
	return a
}

// is requires that the data-in be what is given in hexadecimal.
func (a answer) is(want string) {
	a.t.Helper()
	a.good()
	if got := hex.EncodeToString(a.data); got != strings.ReplaceAll(want, " ", "") {
		a.t.Errorf("%x: data\n got %s\nwant %s", a.cdb, got, want)
	}
}

// pattern is n bytes that differ with seed and place.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) ^ byte(i>>8) ^ seed
	}
	return b
}

func (h *host) same(what string, got, want []byte) {
	h.t.Helper()
	if !bytes.Equal(got, want) {
		h.t.Errorf("%s: other data than was written", what)
	}
}
