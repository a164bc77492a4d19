package lab_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lunlab/lab"
	"lunlab/lun"
	"lunlab/lun/fault"
)

const reloadBase = `pools: [{name: p, size: 1MiB}]
targets:
- name: a
  alua: {groups: [{id: 1, portal_groups: [1]}]}
  luns:
  - {lun: 0, serial: s, store: {kind: file, path: f, size: 1MiB}}
  - {lun: 1, store: {kind: mem, size: 1MiB, cache: 64KiB}}
  - {lun: 2, store: {kind: mem, size: 1MiB, pool: p}, thin: true}
`

// prepare reads other content over the lab's file.
func prepare(t *testing.T, l *lab.Lab, content string) (*lab.Change, error) {
	t.Helper()
	if err := os.WriteFile(l.Config.Path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := l.LoadOver(l.Config.Path)
	if err != nil {
		t.Fatal(err)
	}
	return l.Prepare(c, nil)
}

// attention is the next unit attention of a nexus, 0 if there is none.
func attention(d *lun.Disk, n *lun.Nexus) uint16 {
	c := lun.Command{Nexus: n, CDB: make([]byte, 6)}
	if d.Execute(&c); c.Status == lun.Good {
		return 0
	}
	return uint16(c.Sense[12])<<8 | uint16(c.Sense[13])
}

func TestReload(t *testing.T) {
	l := build(t, load(t, reloadBase))
	n := &lun.Nexus{Name: "n", TargetPort: 1}
	first, second := l.LUNs[0].Disk, l.LUNs[1].Disk
	attention(first, n)
	attention(second, n)
	ch, err := prepare(t, l, strings.NewReplacer(
		"f, size: 1MiB", "f, size: 2MiB", "serial: s,", "serial: s, revision: new,",
		"  - {lun: 2, store: {kind: mem, size: 1MiB, pool: p}, thin: true}\n", "  - {lun: 3, store: {kind: mem, size: 1MiB}}\n",
		"64KiB}", "64KiB}, write_cache: false", "[1]}]}", "[1], state: active-nonoptimized}]}").Replace(reloadBase))
	if err != nil {
		t.Fatal(err)
	}
	if len(ch.Added) != 1 || len(ch.Removed) != 1 || len(ch.Kept) != 2 || ch.Removed[0].Config.Number != 2 {
		t.Fatalf("%d added, %d removed, %d kept", len(ch.Added), len(ch.Removed), len(ch.Kept))
	}
	if first.Blocks() != 2048 {
		t.Error("it grew before Commit")
	}
	if err := ch.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := ch.Removed[0].Close(); err != nil {
		t.Error(err)
	}
	for _, want := range []uint16{lun.ASCCapacityDataHasChanged, lun.ASCInquiryDataHasChanged, lun.ASCAsymmetricAccessChanged, 0} {
		if got := attention(first, n); got != want {
			t.Errorf("LUN 0: unit attention %#04x, want %#04x", got, want)
		}
	}
	for _, want := range []uint16{lun.ASCModeParametersChanged, lun.ASCAsymmetricAccessChanged, 0} {
		if got := attention(second, n); got != want {
			t.Errorf("LUN 1: unit attention %#04x, want %#04x", got, want)
		}
	}
	units := l.Units()
	if len(units) != 3 || units[0].Disk != first || first.Blocks() != 4096 || first.Options().Revision != "new" || units[2].Config.Number != 3 {
		t.Errorf("%d LUNs, the first of %d blocks", len(units), first.Blocks())
	}
	if fi, err := os.Stat(filepath.Join(filepath.Dir(l.Config.Path), "f")); err != nil || fi.Size() != 2<<20 {
		t.Errorf("the file: %v, %v", fi, err)
	}
}

// TestReloadRefused shows what can't change in use, and that all is as before then.
func TestReloadRefused(t *testing.T) {
	l := build(t, load(t, reloadBase))
	for _, c := range []struct{ old, new, want string }{
		{"f, size: 1MiB", "f, size: 512KiB", ":6:5: LUN 0 of a: it can't become smaller, from 1048576 bytes to 524288, while it is in use"},
		{"serial: s", "serial: r", ":6:5: LUN 0 of a: its Serial can't change while it is in use; take the LUN out"},
		{"serial: s", "serial: s, read_only: true", ":6:5: LUN 0 of a: read_only of a file can't change"},
		{"serial: s", "serial: s, block_size: 4096", "its BlockSize can't change"},
		{"cache: 64KiB", "cache: 1MiB", ":7:5: LUN 1 of a: its Store can't change"},
		{"id: 1", "id: 2", "only the states of alua groups can change"},
		{"  alua: {groups: [{id: 1, portal_groups: [1]}]}\n", "", "alua can't come or go"},
		{"size: 1MiB, pool: p", "size: 1MiB, limit: 1MiB", ":8:5: LUN 2 of a: a limit can't come or go"},
		{"targets:", "iscsi: {listen: [\"127.0.0.1:1\"]}\ntargets:", ":1:1: the section iscsi can't change"},
		{"thin: true}\n", "thin: true}\n  - {lun: 3, store: {kind: nbd, address: \"nbd+unix:///?socket=/none\"}}\n", ":9:21: LUN 3 of a: nbd: "},
	} {
		other := strings.Replace(reloadBase, c.old, c.new, 1)
		if c.want != "" && strings.HasPrefix(c.want, ":9") { // and something that would have worked
			other = strings.Replace(other, "f, size: 1MiB", "f, size: 2MiB", 1)
		}
		if _, err := prepare(t, l, other); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("with %s: %v; want %s", c.new, err, c.want)
		}
	}
	if got := l.Units()[0].Disk.Blocks(); got != 2048 || len(l.Units()) != 3 {
		t.Errorf("%d LUNs, the first of %d blocks", len(l.Units()), got)
	}
	if fi, err := os.Stat(filepath.Join(filepath.Dir(l.Config.Path), "f")); err != nil || fi.Size() != 1<<20 {
		t.Errorf("the file: %v, %v", fi, err)
	}
	// What was prepared and isn't wanted.
	ch, err := prepare(t, l, strings.Replace(reloadBase, "f, size: 1MiB", "f, size: 2MiB", 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Undo(); err != nil {
		t.Error(err)
	}
	if fi, err := os.Stat(filepath.Join(filepath.Dir(l.Config.Path), "f")); err != nil || fi.Size() != 1<<20 {
		t.Errorf("the file after Undo: %v, %v", fi, err)
	}
}

// rules are those in force at a unit.
func rules(u *lab.Unit) (list []string) {
	for _, r := range u.Faults.Rules() {
		list = append(list, r.Rule)
	}
	return list
}

// TestReloadFaults changes the rules of a LUN: those of the file go and come, others
// stay.
func TestReloadFaults(t *testing.T) {
	base := "targets: [{name: a, luns: [{lun: 0, serial: s, store: {kind: mem, size: 1MiB}, faults: [cmd=read10 status=busy, nth=3 never]}]}]"
	l := build(t, load(t, base))
	own, err := fault.Parse("cmd=write10 status=busy")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.LUNs[0].Faults.Add(own); err != nil {
		t.Fatal(err)
	}
	if _, err := l.LUNs[0].Faults.Remove(2); err != nil { // nth=3
		t.Fatal(err)
	}
	for _, step := range []struct {
		content string
		want    []string
	}{
		{base, []string{"cmd=read10 status=busy", "cmd=write10 status=busy"}}, // no change
		{strings.Replace(base, "nth=3", "nth=4", 1), []string{"cmd=write10 status=busy", "cmd=read10 status=busy", "nth=4 never"}},
		{strings.Replace(base, ", faults: [cmd=read10 status=busy, nth=3 never]", "", 1), []string{"cmd=write10 status=busy"}},
	} {
		ch, err := prepare(t, l, step.content)
		if err != nil {
			t.Fatal(err)
		}
		if err := ch.Commit(); err != nil {
			t.Fatal(err)
		}
		if got := rules(l.Units()[0]); !slices.Equal(got, step.want) {
			t.Errorf("rules %q; want %q", got, step.want)
		}
	}
}

// TestReloadThresholds gives a pool and a LUN whose writes wait for it more room, and
// less.
func TestReloadThresholds(t *testing.T) {
	base := `pools: [{name: p, size: 1MiB, exhaustion: temporary}]
targets:
- name: a
  luns:
  - {lun: 0, serial: s, store: {kind: mem, size: 4MiB, pool: p}, thin: true, soft_threshold: 3MiB}
  - {lun: 1, serial: r, store: {kind: mem, size: 4MiB, limit: 1MiB}, thin: true}
`
	l := build(t, load(t, base))
	write := func(number int, lba byte) uint16 {
		t.Helper()
		c := execute(l.Units()[number].Disk, []byte{0x2a, 0, 0, 0, lba << 3, 0, 0, 8, 0, 0}, make([]byte, 1<<20), nil)
		if c.Status == lun.Good {
			return 0
		}
		return uint16(c.Sense[12])<<8 | uint16(c.Sense[13])
	}
	reload := func(content string) {
		t.Helper()
		ch, err := prepare(t, l, content)
		if err != nil {
			t.Fatal(err)
		}
		if err := ch.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	want := func(number int, lba byte, want uint16) {
		t.Helper()
		if got := write(number, lba); got != want {
			t.Errorf("WRITE of MiB %d of LUN %d: %#04x; want %#04x", lba, number, got, want)
		}
	}
	for number := range 2 {
		want(number, 0, 0)
	}
	want(0, 1, lun.ASCNotReadySpaceAllocation)
	want(1, 1, lun.ASCSpaceAllocationFailed)
	larger := strings.NewReplacer("p, size: 1MiB", "p, size: 2MiB", "limit: 1MiB", "limit: 3MiB, exhaustion: temporary").Replace(base)
	reload(larger)
	for number := range 2 {
		want(number, 1, 0)
	}
	want(0, 2, lun.ASCNotReadySpaceAllocation)
	want(1, 2, 0)
	want(1, 3, lun.ASCNotReadySpaceAllocation)
	reload(strings.NewReplacer("p, size: 2MiB, exhaustion: temporary", "p, size: 2MiB", "limit: 3MiB", "limit: 1MiB").Replace(larger))
	want(0, 2, lun.ASCSpaceAllocationFailed)
	want(1, 0, 0) // what there was stays
	want(1, 3, lun.ASCNotReadySpaceAllocation)
}

// TestReloadPools: a pool that a refused reload had isn't held against the next one,
// nor is one that has gone.
func TestReloadPools(t *testing.T) {
	base := "targets: [{name: a, luns: [{lun: 0, serial: s, store: {kind: mem, size: 1MiB}}]}]"
	l := build(t, load(t, base))
	with := func(size, more string) string {
		return "pools: [{name: p, size: " + size + "}]\n" + strings.Replace(base, "}}]}]", "}}, {lun: 1, thin: true, store: {kind: mem, size: 1MiB, pool: p}}"+more+"]}]", 1)
	}
	if _, err := prepare(t, l, with("1MiB", `, {lun: 2, store: {kind: nbd, address: "nbd+unix:///?socket=/none"}}`)); err == nil {
		t.Fatal("a store that isn't there was opened")
	}
	for _, content := range []string{with("2MiB", ""), base, with("3MiB", "")} {
		ch, err := prepare(t, l, content)
		if err != nil {
			t.Fatal(err)
		}
		if err := ch.Commit(); err != nil {
			t.Fatal(err)
		}
		for _, u := range ch.Removed {
			if err := u.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
