package target_test

import (
	"encoding/binary"
	"testing"

	"lunlab/lun"
	"lunlab/lun/store/mem"
	"lunlab/target"
)

// A nexus copies between the logical units that it sees, whichever of them it
// asks.
func TestCopyBehindMask(t *testing.T) {
	var set lun.CopySet
	d := target.New()
	var list []byte // CSCD descriptors
	for number := range uint16(2) {
		s, err := mem.New(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		disk, err := lun.NewDisk(s, lun.DiskOptions{Copies: &set, LUN: number})
		if err != nil {
			t.Fatal(err)
		}
		defer disk.Close()
		if _, err := d.Add(number, disk, target.Limits{}); err != nil {
			t.Fatal(err)
		}
		desc := make([]byte, 32)
		copy(desc, []byte{0xe4, 0, 0, 0, 1, 3, 0, 8})
		copy(desc[8:], disk.Options().NAA)
		list = append(list, desc...)
	}
	list = append(list, 2, 0, 0, 24, 0, 0, 0, 1, 0, 0, 0, 8) // 8 blocks from the first to the second
	list = append(list, make([]byte, 16)...)
	header := make([]byte, 16)
	header[3], header[11] = 64, 28
	list = append(header, list...)
	cdb := make([]byte, 16)
	cdb[0] = 0x83
	binary.BigEndian.PutUint32(cdb[10:], uint32(len(list)))
	for masked, want := range map[bool]lun.Status{false: lun.Good, true: lun.CheckCondition} {
		var visible func(uint16) bool
		if masked {
			visible = func(n uint16) bool { return n == 0 }
		}
		n := d.Open(lun.Nexus{}, visible)
		defer n.Close()
		execute(t, n, target.NumberAddress(0), 0, 0, 0, 0, 0, 0, 0) // takes the unit attention
		k := &target.Task{}
		k.CDB, k.DataOut = cdb, [][]byte{list}
		if got := n.Enter(k, &owner{}, n.Lookup(target.NumberAddress(0)), 1); got != target.Admitted {
			t.Fatalf("Enter: %v", got)
		}
		if !k.Execute() || !k.Leave() {
			t.Fatal("the task was aborted")
		}
		if k.Status != want {
			t.Errorf("masked %v: status %#x, sense %x", masked, k.Status, k.Sense)
		}
	}
}
