package lab_test

import (
	"strings"
	"testing"

	"lunlab/lab"
	"lunlab/lun"
)

// TestATA builds an ATA drive, loses its power, and reloads it.
func TestATA(t *testing.T) {
	const base = `targets:
- name: a
  luns:
  - {lun: 0, store: {kind: mem, size: 1MiB, cache: 64KiB}, serial: SN7, naa: "5001405000000007", rotation_rate: 5400, physical_block_size: 4096, ata: {model: a model, queue_depth: 4}}
  - {lun: 1, store: {kind: mem, size: 1MiB}, thin: true, block_size: 4096, ata: {}}
`
	l := build(t, load(t, base))
	n := &lun.Nexus{Name: "n", TargetPort: 1}
	u := l.LUNs[0]
	execute := func(u *lab.Unit, cdb ...byte) []byte {
		in := make([]byte, 64)
		u.Faults.Execute(&lun.Command{Nexus: n, CDB: cdb, DataIn: [][]byte{in}})
		return in
	}
	if got := string(execute(u, 0x12, 0, 0, 0, 64, 0)[8:32]); got != "ATA     a model         " {
		t.Errorf("INQUIRY: %q", got)
	}
	if u.Blocks() != 2048 || u.BlockSize() != 512 || u.Serial() != "SN7" || l.LUNs[1].Blocks() != 256 || l.LUNs[1].BlockSize() != 4096 {
		t.Error("size or serial number")
	}
	o := u.ATA.Drive().Options()
	if o.WWN != 0x5001405000000007 || o.RotationRate != 5400 || o.PhysicalExponent != 3 || o.QueueDepth != 4 || o.Trim || !l.LUNs[1].ATA.Drive().Options().Trim {
		t.Errorf("%+v", o)
	}
	for _, write := range [][]byte{{0x2a, 0, 0, 0, 0, 1, 0, 0, 1, 0}, {0x2a, 8, 0, 0, 0, 2, 0, 0, 1, 0}} {
		c := lun.Command{Nexus: n, CDB: write, DataOut: [][]byte{[]byte(strings.Repeat("x", 512))}}
		for u.Faults.Execute(&c); c.Status != lun.Good; u.Faults.Execute(&c) { // past the unit attention
		}
	}
	if err := u.CutPower(nil); err != nil {
		t.Fatal(err)
	}
	if count, s := u.ATA.Attention(n); count != 1 || s.Code != lun.ASCPowerOnOrReset {
		t.Errorf("%d unit attentions, %+v", count, s)
	}
	execute(u, 0, 0, 0, 0, 0, 0)
	if lost, kept := execute(u, 0x28, 0, 0, 0, 0, 1, 0, 0, 1, 0)[0], execute(u, 0x28, 0, 0, 0, 0, 2, 0, 0, 1, 0)[0]; lost != 0 || kept != 'x' {
		t.Errorf("after a power cut: %q without FUA, %q with", lost, kept)
	}
	for _, c := range []struct{ old, new, want string }{
		{"queue_depth: 4", "queue_depth: 5", "its ATA can't change"},
		{", ata: {}", "", "its ATA can't change"},
		{"thin: true", "thin: true, write_cache: false", "its WriteThrough can't change"},
		{"size: 1MiB}", "size: 2MiB}", "an ATA drive can't grow"},
	} {
		if _, err := prepare(t, l, strings.Replace(base, c.old, c.new, 1)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("with %s: %v; want %s", c.new, err, c.want)
		}
	}
	ch, err := prepare(t, l, strings.Replace(base, "ata: {}", "faults: [cmd=read status=busy], ata: {}", 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Commit(); err != nil {
		t.Fatal(err)
	}
	if n := len(l.LUNs[1].Faults.Rules()); n != 1 {
		t.Errorf("%d rules", n)
	}
}
