package fault_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lunlab/lun"
	"lunlab/lun/fault"
)

// TestMediumHeals rewrites blocks that can't be read.
func TestMediumHeals(t *testing.T) {
	u := newUnit(t, "lba=8-23 medium-error")
	bad := func() (list []int) {
		for lba := range 64 {
			switch c := do(u, read10(lba, 1)); c.Status {
			case lun.Good:
				if c.InLen != blockSize {
					t.Errorf("block %d: %s", lba, show(c))
				}
			case lun.CheckCondition:
				list = append(list, lba)
			}
		}
		return list
	}
	from := func(ranges ...[2]int) (list []int) {
		for _, r := range ranges {
			for lba := r[0]; lba <= r[1]; lba++ {
				list = append(list, lba)
			}
		}
		return list
	}
	unmap := make([]byte, 24)
	unmap[1], unmap[3], unmap[15], unmap[19] = 22, 16, 19, 1
	for _, tt := range []struct {
		name string
		cdb  []byte
		out  []byte // instead of what abortable makes
		want []int
	}{
		{"nothing", make([]byte, 6), nil, from([2]int{8, 23})},
		{"WRITE(10) before", write10(4, 4), nil, from([2]int{8, 23})},
		{"WRITE(10) of the first two", write10(4, 6), nil, from([2]int{10, 23})},
		{"WRITE(10) in the middle", write10(16, 2), nil, from([2]int{10, 15}, [2]int{18, 23})},
		{"WRITE(10) that fails", write10(60, 10), nil, from([2]int{10, 15}, [2]int{18, 23})},
		{"WRITE SAME(16) over the gap", []byte{0x93, 9: 15, 13: 4, 15: 0}, make([]byte, blockSize), from([2]int{10, 14}, [2]int{19, 23})},
		{"UNMAP", []byte{0x42, 8: 24, 9: 0}, unmap, from([2]int{10, 14}, [2]int{20, 23})},
		{"WRITE(16) to the end", []byte{0x8a, 9: 12, 13: 40, 15: 0}, nil, from([2]int{10, 11})},
		{"WRITE(10) of all", write10(0, 64), nil, nil},
	} {
		c, _ := abortable(u, tt.cdb)
		if tt.out != nil {
			c.DataOut = [][]byte{tt.out}
		}
		u.Execute(c)
		if d := cmp.Diff(tt.want, bad()); d != "" {
			t.Errorf("after %s (-want +got):\n%s", tt.name, d)
		}
		if n := u.Rules()[0].Bad; n != uint64(len(tt.want)) {
			t.Errorf("after %s, %d blocks are said to be bad, want %d", tt.name, n, len(tt.want))
		}
	}
	// A read over bad blocks gives those before.
	u = newUnit(t, "lba=8 medium-error")
	c := do(u, read10(6, 4))
	if got := blocks(c.DataIn); c.InLen != 2*blockSize || !bytes.Equal(got, []byte{6, 7, 0, 0}) {
		t.Errorf("%s, blocks %v; want 6 and 7", show(c), got)
	}
}

// TestCorrupt shows which bytes are changed of what is read and written, and that
// the initiator's own data stays as it is.
func TestCorrupt(t *testing.T) {
	for _, tt := range []struct {
		rule string
		cdb  []byte
		want map[int]byte // bytes of the LUN, or of what is read, that differ
	}{
		{"corrupt=5+2", read10(1, 2), map[int]byte{5: 0xfe, 6: 0xfe}},
		{"corrupt=341+3^0x81", read10(1, 2), map[int]byte{341: 0x80, 342: 0x80, 343: 0x80}}, // over the end of a buffer
		{"corrupt=1023+9", read10(1, 2), map[int]byte{1023: 0xfd}},
		{"corrupt=1024+9", read10(1, 2), nil},
		{"lba=2-9 corrupt=3=0x77", read10(1, 2), map[int]byte{515: 0x77}},
		{"corrupt=0+2=0x99", write10(1, 2), map[int]byte{512: 0x99, 513: 0x99}},
		{"corrupt=340+3=0x99", write10(1, 2), map[int]byte{852: 0x99, 853: 0x99, 854: 0x99}},
		{"lba=2 corrupt=1=0x99", write10(1, 2), map[int]byte{1025: 0x99}},
		{"cmd=read corrupt=0", write10(1, 2), nil},
		{"cmd=write corrupt=0", read10(1, 2), nil},
		{"corrupt=0", read10(64, 1), nil},
		{"corrupt=0", make([]byte, 6), nil},
	} {
		u, plain := newUnit(t, tt.rule), newDisk(t, 64)
		c, _ := abortable(u, tt.cdb)
		p, _ := abortable(plain, tt.cdb)
		out := bytes.Join(c.DataOut, nil)
		given := c.DataOut
		u.Execute(c)
		plain.Execute(p)
		if show(c) != show(p) {
			t.Errorf("%s: %s, and %s without", tt.rule, show(c), show(p))
		}
		if !bytes.Equal(bytes.Join(given, nil), out) {
			t.Errorf("%s: the initiator's data was changed", tt.rule)
		}
		got, want := bytes.Join(c.DataIn, nil), bytes.Join(p.DataIn, nil)
		if len(out) > 0 {
			got, want = bytes.Join(do(u.Unit(), read10(0, 64)).DataIn, nil), bytes.Join(do(plain, read10(0, 64)).DataIn, nil)
		}
		for at, b := range tt.want {
			want[at] = b
		}
		if !bytes.Equal(got, want) {
			for i := range got {
				if got[i] != want[i] {
					t.Errorf("%s: byte %d is %#x, want %#x", tt.rule, i, got[i], want[i])
				}
			}
		}
		if fired := u.Rules()[0].Fired; fired != uint64(min(1, len(tt.want))) {
			t.Errorf("%s: fired %d times for %d bytes", tt.rule, fired, len(tt.want))
		}
	}
}

// TestAttention has a unit attention reported once by each nexus that was there.
func TestAttention(t *testing.T) {
	u := newUnit(t, "cmd=write attention=2a/09")
	as := func(n *lun.Nexus, cdb []byte) string {
		c, _ := abortable(u, cdb)
		c.Nexus = n
		if u.Execute(c); c.Status == lun.CheckCondition {
			return fmt.Sprintf("%x/%x", c.Sense[2], c.Sense[12:14])
		}
		return fmt.Sprintf("status %x", c.Status)
	}
	ready, inq := make([]byte, 6), []byte{0x12, 4: 36, 5: 0}
	gone := &lun.Nexus{Name: "gone"}
	u.Unit().Execute(&lun.Command{Nexus: gone, CDB: ready}) // takes POWER ON away
	for _, step := range []struct {
		nexus *lun.Nexus
		cdb   []byte
		want  string
	}{
		{nexusA, ready, "status 0"},
		{nexusB, ready, "status 0"},
		{gone, ready, "status 0"},
		{nexusA, write10(0, 1), "6/2a09"},
		{nexusA, ready, "status 0"},
		{nexusB, inq, "status 0"},
		{nexusB, ready, "6/2a09"},
		{nexusB, ready, "status 0"},
	} {
		if got := as(step.nexus, step.cdb); got != step.want {
			t.Errorf("%x by %s: %s, want %s", step.cdb, step.nexus.Name, got, step.want)
		}
	}
	// A nexus that was lost has nothing to report, and neither does anyone when the
	// rule is gone.
	u.Notify(gone, lun.NexusLoss)
	if got := as(gone, ready); got != "6/2900" {
		t.Errorf("a nexus that has come again: %s, want the disk's own 6/2900", got)
	}
	if got := as(nexusA, write10(0, 1)); got != "6/2a09" {
		t.Errorf("again: %s", got)
	}
	if _, err := u.Remove(); err != nil {
		t.Fatal(err)
	}
	add(t, u, "attention=29/00 nth=1000")
	if got := as(nexusB, ready); got != "status 0" {
		t.Errorf("after its rule is gone: %s", got)
	}
}

// link is a path that can break.
type link struct {
	has     lun.Link
	dropped int
}

func (l *link) Drop(k lun.Link) bool {
	if k == l.has {
		l.dropped++
	}
	return k == l.has
}

func TestDrop(t *testing.T) {
	u := newUnit(t, "cmd=write drop=session", "cmd=write drop=connection")
	l := &link{has: lun.ConnectionLink}
	c, _ := abortable(u, write10(3, 1))
	c.Path = l
	u.Execute(c)
	if c.Status != lun.Good || l.dropped != 1 {
		t.Errorf("%s, dropped %d times", show(c), l.dropped)
	}
	do(u, write10(3, 1)) // by a transport that has nothing to drop
	if r := u.Rules(); r[0].Matched != 2 || r[0].Fired != 0 || r[1].Matched != 2 || r[1].Fired != 1 {
		t.Errorf("%+v", r)
	}
	if fault.LinkName(lun.SessionLink) != "session" {
		t.Error("a session is called", fault.LinkName(lun.SessionLink))
	}
}

// TestWithoutRules sees that a unit without rules costs no memory.
func TestWithoutRules(t *testing.T) {
	u := newUnit(t)
	c, _ := abortable(u, read10(0, 8))
	if n := testing.AllocsPerRun(100, func() { u.Execute(c) }); n != 0 {
		t.Errorf("%v allocations for a command", n)
	}
	// Nor does one with a rule that is about others.
	add(t, u, "cmd=write lba=1 sense=3/0c/00")
	if n := testing.AllocsPerRun(100, func() { u.Execute(c) }); n != 0 {
		t.Errorf("%v allocations for a command that no rule is about", n)
	}
}

// BenchmarkRead reads 4 KiB from the disk, through a unit without rules, and through
// one with a rule that is about another command.
func BenchmarkRead(b *testing.B) {
	u := newUnit(b)
	other := newUnit(b, "cmd=write sense=3/0c/00")
	for _, bb := range []struct {
		name string
		unit lun.Unit
	}{{"disk", u.Unit()}, {"no rules", u}, {"another rule", other}} {
		b.Run(bb.name, func(b *testing.B) {
			c, _ := abortable(bb.unit, read10(0, 8))
			b.ReportAllocs()
			for b.Loop() {
				bb.unit.Execute(c)
			}
		})
	}
}
