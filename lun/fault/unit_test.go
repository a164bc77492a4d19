package fault_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"lunlab/lun"
	"lunlab/lun/fault"
	"lunlab/lun/store/mem"
)

const blockSize = 512

var (
	nexusA = &lun.Nexus{Name: "iqn.2026-01.example:a,i,0x1", TargetPort: 1}
	nexusB = &lun.Nexus{Name: "iqn.2026-01.example:b,i,0x1", TargetPort: 1}
)

// newDisk is a disk of so many blocks, whose unit attentions have been reported to
// both nexuses. Block n is full of n.
func newDisk(t testing.TB, blocks int) *lun.Disk {
	t.Helper()
	s, err := mem.New(int64(blocks) * blockSize)
	if err != nil {
		t.Fatal(err)
	}
	for n := range blocks {
		if _, err := s.WriteAt(bytes.Repeat([]byte{byte(n)}, blockSize), int64(n)*blockSize); err != nil {
			t.Fatal(err)
		}
	}
	d, err := lun.NewDisk(s, lun.DiskOptions{Thin: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	for _, n := range []*lun.Nexus{nexusA, nexusB} {
		d.Execute(&lun.Command{Nexus: n, CDB: make([]byte, 6)})
	}
	return d
}

// newUnit is such a disk of 64 blocks behind rules.
func newUnit(t testing.TB, rules ...string) *fault.Unit {
	t.Helper()
	u := fault.New(newDisk(t, 64))
	for _, r := range rules {
		add(t, u, r)
	}
	return u
}

func add(t testing.TB, u *fault.Unit, text string) uint64 {
	t.Helper()
	r, err := fault.Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	id, err := u.Add(r)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func read10(lba, n int) []byte {
	cdb := make([]byte, 10)
	cdb[0] = 0x28
	binary.BigEndian.PutUint32(cdb[2:], uint32(lba))
	binary.BigEndian.PutUint16(cdb[7:], uint16(n))
	return cdb
}

func write10(lba, n int) []byte {
	cdb := read10(lba, n)
	cdb[0] = 0x2a
	return cdb
}

// abortable makes a command of a CDB that can be aborted, with room and data for
// what it moves: the data is all 0xee.
func abortable(u lun.Unit, cdb []byte) (c *lun.Command, abort func()) {
	cancel := make(chan struct{})
	c = &lun.Command{Nexus: nexusA, CDB: cdb, Cancel: cancel}
	out, in := u.DataLength(cdb)
	if out > 0 {
		data := bytes.Repeat([]byte{0xee}, int(out))
		c.DataOut = [][]byte{data[:out/3], data[out/3:]}
	}
	if in > 0 {
		room := make([]byte, in)
		c.DataIn = [][]byte{room[:in/3], room[in/3:]}
	}
	return c, func() { close(cancel) }
}

func do(u lun.Unit, cdb []byte) *lun.Command {
	c, _ := abortable(u, cdb)
	u.Execute(c)
	return c
}

// show is an answer in a line: status, sense, and how much was moved.
func show(c *lun.Command) string {
	s := fmt.Sprintf("%02x", uint8(c.Status))
	if len(c.Sense) > 0 {
		s += " " + hex.EncodeToString(c.Sense)
	}
	return s + fmt.Sprintf(" in %d out %d", c.InLen, c.OutLen)
}

// blocks is the first byte of each block of data.
func blocks(data [][]byte) (first []byte) {
	b := bytes.Join(data, nil)
	for at := 0; at < len(b); at += blockSize {
		first = append(first, b[at])
	}
	return first
}

// TestAnswers shows the answer to one command each.
func TestAnswers(t *testing.T) {
	fixed := func(flags, key, info, code, specific string) string {
		return "02 " + flags + "00" + key + info + "0a00000000" + code + "00" + specific
	}
	for _, tt := range []struct {
		rule string
		cdb  []byte
		want string
	}{
		{"status=busy", read10(0, 1), "08 in 0 out 0"},
		{"status=task-set-full", make([]byte, 6), "28 in 0 out 0"},
		{"status=reservation-conflict", write10(0, 1), "18 in 0 out 0"},
		{"status=0x55", read10(0, 1), "55 in 0 out 0"},
		{"status=busy execute", read10(0, 2), "08 in 1024 out 0"},
		{"status=good", read10(0, 2), "00 in 0 out 0"},
		{"status=good", write10(0, 2), "00 in 0 out 1024"},
		{"sense=4/44/00", read10(3, 1), fixed("70", "04", "00000000", "4400", "000000") + " in 0 out 0"},
		{"sense=3/11/04 info=lba", read10(3, 1), fixed("f0", "03", "00000003", "1104", "000000") + " in 0 out 0"},
		{"sense=3/11/04 info=lba lba=5", read10(3, 4), fixed("f0", "03", "00000005", "1104", "000000") + " in 1024 out 0"},
		{"sense=3/0c/00 info=lba lba=4", write10(3, 4), fixed("f0", "03", "00000004", "0c00", "000000") + " in 0 out 512"},
		{"sense=3/11/00 info=0xffffffff", make([]byte, 6), fixed("f0", "03", "ffffffff", "1100", "000000") + " in 0 out 0"},
		{"sense=3/11/00 info=0x100000000", read10(0, 1), "02 720311000000000c000a80000000000100000000 in 0 out 0"},
		{"sense=3/11/00 info=1 descriptor", read10(0, 1), "02 720311000000000c000a80000000000000000001 in 0 out 0"},
		{"sense=3/11/00 info=lba", make([]byte, 6), fixed("70", "03", "00000000", "1100", "000000") + " in 0 out 0"},
		{"sense=5/24/00 field=cdb:2.7", read10(0, 1), fixed("70", "05", "00000000", "2400", "cf0002") + " in 0 out 0"},
		{"sense=5/26/00 field=data:300", read10(0, 1), fixed("70", "05", "00000000", "2600", "80012c") + " in 0 out 0"},
		{"sense=3/0c/00 deferred", write10(0, 1), fixed("71", "03", "00000000", "0c00", "000000") + " in 0 out 0"},
		{"sense=1/18/00 execute", read10(0, 2), fixed("70", "01", "00000000", "1800", "000000") + " in 1024 out 0"},
		{"sense=1/18/00 execute info=lba", read10(7, 2), fixed("f0", "01", "00000007", "1800", "000000") + " in 1024 out 0"},
		// A command that fails by itself says why.
		{"sense=1/18/00 execute", read10(64, 1), fixed("70", "05", "00000000", "2100", "000000") + " in 0 out 0"},
		{"sense=3/11/00 info=lba lba=70", read10(60, 20), fixed("70", "05", "00000000", "2100", "000000") + " in 0 out 0"},
		{"lba=5-6 medium-error", read10(3, 4), fixed("f0", "03", "00000005", "1100", "000000") + " in 1024 out 0"},
		{"lba=5-6 medium-error", read10(6, 4), fixed("f0", "03", "00000006", "1100", "000000") + " in 0 out 0"},
		{"lba=5-6 medium-error", read10(7, 4), "00 in 2048 out 0"},
		{"lba=5-6 medium-error", []byte{0x2f, 0, 0, 0, 0, 0, 0, 0, 9, 0}, fixed("f0", "03", "00000005", "1100", "000000") + " in 0 out 0"},
		{"attention=2a/09", read10(0, 1), fixed("70", "06", "00000000", "2a09", "000000") + " in 0 out 0"},
		{"attention=2a/09", []byte{0x03, 0, 0, 0, 18, 0}, "00 in 18 out 0"},
		{"short=700", read10(0, 2), "00 in 700 out 0"},
		{"short=700", read10(0, 1), "00 in 512 out 0"},
		{"short=0", write10(0, 2), "00 in 0 out 0"},
		// What may wait doesn't, where the transport can't.
		{"never", read10(0, 1), "40 in 0 out 0"},
		{"delay=1h status=busy", read10(0, 1), "08 in 0 out 0"},
	} {
		synctest.Test(t, func(t *testing.T) {
			u := newUnit(t, tt.rule)
			c, abort := abortable(u, tt.cdb)
			if tt.rule == "never" {
				time.AfterFunc(time.Minute, abort)
			}
			u.Execute(c)
			if got := show(c); got != tt.want {
				t.Errorf("%s: %x\n got %s\nwant %s", tt.rule, tt.cdb, got, tt.want)
			}
		})
	}
}

// TestMatching shows which of several commands a rule befalls.
func TestMatching(t *testing.T) {
	six := func(b ...byte) []byte { return append(b, make([]byte, 6-len(b))...) }
	all := []struct {
		name string
		cdb  []byte
	}{
		{"TEST UNIT READY", six()},
		{"INQUIRY", six(0x12, 0, 0, 0, 36)},
		{"READ(6) 0, 256", six(0x08)},
		{"READ(10) 10, 1", read10(10, 1)},
		{"READ(10) 8, 4", read10(8, 4)},
		{"WRITE(10) 11, 1", write10(11, 1)},
		{"READ(10) 11, 0", read10(11, 0)},
		{"READ CAPACITY(16)", []byte{0x9e, 0x10, 13: 32, 15: 0}},
		{"GET LBA STATUS(16) 10", []byte{0x9e, 0x12, 9: 10, 13: 24, 15: 0}},
		{"UNMAP 3, 1, 10, 4", []byte{0x42, 8: 40, 9: 0}},
		{"SYNCHRONIZE CACHE(10) 0, all", []byte{0x35, 9: 0}},
		{"WRITE SAME(16) 9, 1", []byte{0x93, 9: 9, 13: 1, 15: 0}},
		{"READ(16) 2^40+10", []byte{0x88, 4: 1, 9: 10, 13: 1, 15: 0}},
	}
	list := make([]byte, 40)
	list[1], list[3] = 38, 32
	list[15], list[19] = 3, 1
	list[31], list[35] = 10, 4
	for _, tt := range []struct {
		rule string
		want []string
	}{
		{"cmd=read10", []string{"READ(10) 10, 1", "READ(10) 8, 4", "READ(10) 11, 0"}},
		{"cmd=read lba=10", []string{"READ(6) 0, 256", "READ(10) 10, 1", "READ(10) 8, 4"}},
		{"lba=10", []string{"READ(6) 0, 256", "READ(10) 10, 1", "READ(10) 8, 4", "GET LBA STATUS(16) 10", "UNMAP 3, 1, 10, 4", "SYNCHRONIZE CACHE(10) 0, all"}},
		{"lba=12-20 cmd=unmap", []string{"UNMAP 3, 1, 10, 4"}},
		{"lba=4-9 cmd=unmap,write-same", []string{"WRITE SAME(16) 9, 1"}},
		{"lba=0x1000000000a", []string{"SYNCHRONIZE CACHE(10) 0, all", "READ(16) 2^40+10"}},
		{"cmd=read-capacity", []string{"READ CAPACITY(16)"}},
		{"cmd=0x9e/0x12,0x12/0,test-unit-ready", []string{"TEST UNIT READY", "INQUIRY", "GET LBA STATUS(16) 10"}},
		{"initiator=iqn.*:b", nil},
		{"initiator=iqn.*:a cmd=inquiry", []string{"INQUIRY"}},
		{"cmd=read nth=2", []string{"READ(10) 10, 1"}},
		{"cmd=read10 every=2", []string{"READ(10) 8, 4"}},
		{"cmd=read10 count=1", []string{"READ(10) 10, 1"}},
	} {
		u := newUnit(t, tt.rule+" status=0x77")
		var got []string
		for _, c := range all {
			cmd, _ := abortable(u, c.cdb)
			if c.cdb[0] == 0x42 {
				cmd.DataOut = [][]byte{list[:20], list[20:]}
			}
			if u.Execute(cmd); cmd.Status == 0x77 {
				got = append(got, c.name)
			}
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.rule, d)
		}
	}
}
