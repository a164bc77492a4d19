package lab_test

import (
	"bufio"
	"errors"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"lunlab/lab"
	"lunlab/lun"
	"lunlab/test/need"
)

func build(t *testing.T, c *lab.Config) *lab.Lab {
	t.Helper()
	l, err := c.Build(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// execute runs a command twice if the first tells a unit attention.
func execute(d *lun.Disk, cdb, out, in []byte) *lun.Command {
	c := &lun.Command{Nexus: new(lun.Nexus), CDB: cdb, DataOut: [][]byte{out}, DataIn: [][]byte{in}}
	d.Execute(c)
	d.Execute(c)
	return c
}

// TestBuildOptions builds LUNs of all kinds, and looks at what has become of their
// options.
func TestBuildOptions(t *testing.T) {
	c := load(t, `
iscsi: {listen: [{address: "127.0.0.1:0", group: 4}, {address: "127.0.0.1:0", group: 3}]}
pools: [{name: p, size: 128KiB}]
targets:
- name: a
  iscsi: {portal_groups: [3]}
  alua: {groups: [{id: 1, portal_groups: [1]}]}
  luns:
  - {lun: 0, store: {kind: mem, size: 1MiB, pool: p}, thin: true, soft_threshold: 64KiB, streams: 2, form_factor: 2.5, eui: "0102030405060708"}
  - {lun: 1, store: {kind: mem, size: 1MiB, pool: p, cache: 1MiB}, thin: true, lbprz: false, alua: {explicit: true, groups: [{id: 2, portal_groups: [3]}]}}
  - {lun: 2, store: {kind: mem, size: 1MiB}, zones: {size: 256KiB, conventional: 1, max_open: 2}}
  - {lun: 3, store: {kind: file, path: x, size: 1MiB, cache: 1KiB}, state: x.state}
  - {lun: 4, store: {kind: file, path: y, size: 1049088}, zones: {size: 1MiB, host_aware: true}}
`)
	l := build(t, c)
	o := make([]lun.DiskOptions, len(l.LUNs))
	for i, u := range l.LUNs {
		o[i] = u.Disk.Options()
	}
	if g := o[0].PortGroups; o[0].SoftThreshold != 64<<10 || o[0].Streams != 2 || o[0].FormFactor != 3 || len(o[0].EUI) != 8 || len(g) != 1 || g[0].ID != 1 {
		t.Errorf("LUN 0: %+v", o[0])
	}
	if g := o[1].PortGroups; !o[1].Unzeroed || !o[1].ExplicitAccess || len(g) != 1 || g[0].ID != 2 {
		t.Errorf("LUN 1: %+v", o[1])
	}
	if got, want := o[0].Ports, []uint16{1, 3}; !slices.Equal(got, want) {
		t.Errorf("target ports %d, want %d", got, want)
	}
	if z := o[2].Zones; z == nil || *z != (lun.ZoneOptions{Size: 512, Conventional: 1, MaxOpen: 2}) {
		t.Errorf("LUN 2: %+v", o[2])
	}
	if o[3].Memory != lun.StateFile(filepath.Join(filepath.Dir(c.Path), "x.state")) {
		t.Errorf("LUN 3: %+v", o[3])
	}
	if z := o[4].Zones; z == nil || !z.HostAware || l.LUNs[4].Disk.Blocks() != 2048 {
		t.Errorf("LUN 4: %+v, %d blocks", o[4], l.LUNs[4].Disk.Blocks())
	}
	// What LUN 0 takes of the pool isn't there for LUN 1.
	write := []byte{0x2a, 8, 0, 0, 0, 0, 0, 0, 1, 0}
	if got := execute(l.LUNs[0].Disk, []byte{0x2a, 0, 0, 0, 0, 0, 0, 1, 0, 0}, make([]byte, 128<<10), nil); got.Status != lun.Good {
		t.Errorf("WRITE to LUN 0: status %#x, sense %x", got.Status, got.Sense)
	}
	if got := execute(l.LUNs[1].Disk, write, make([]byte, 512), nil); got.Status != lun.CheckCondition || got.Sense[2] != byte(lun.DataProtect) {
		t.Errorf("WRITE to LUN 1: status %#x, sense %x; want DATA PROTECT", got.Status, got.Sense)
	}
	if got := l.LUNs[1].CutPower(nil); got != nil {
		t.Errorf("CutPower: %v", got)
	}
	if got := l.LUNs[0].CutPower(nil); !errors.Is(got, lab.ErrNoCache) {
		t.Errorf("CutPower without a cache: %v; want ErrNoCache", got)
	}
}

// TestBuildNBD has a LUN on an nbdkit, and one on a server that isn't there.
func TestBuildNBD(t *testing.T) {
	program := need.Program(t, "nbdkit", "nbdkit")
	c := load(t, `
targets:
- name: a
  luns:
  - {lun: 0, thin: true, store: {kind: nbd, address: "nbd+unix:///?socket=/none", timeout: 10s, reconnect: 10s}}
`)
	if _, err := c.Build(nil); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Build without a server: %v", err)
	}
	// nbdkit makes a socket, prints its name and ends when its standard input does.
	cmd := exec.Command(program, "-U", "-", "memory", "1M", "--run", `echo "$unixsocket"; cat`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	socket, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	c.Targets[0].LUNs[0].Store.Address = "nbd+unix:///?socket=" + strings.TrimSpace(socket)
	l, err := c.Build(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.LUNs[0].Disk.Blocks(); got != 2048 {
		t.Errorf("%d blocks, want 2048", got)
	}
	if got := execute(l.LUNs[0].Disk, []byte{0x2a, 8, 0, 0, 0, 0, 0, 0, 1, 0}, make([]byte, 512), nil); got.Status != lun.Good {
		t.Errorf("WRITE with FUA: status %#x, sense %x", got.Status, got.Sense)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestEveryOption looks whether each option of a disk can be set by a key.
func TestEveryOption(t *testing.T) {
	l := build(t, load(t, `
targets:
- name: a
  luns:
  - lun: 1
    store: {kind: mem, size: 1MiB, limit: 1MiB}
    physical_block_size: 4096
    lowest_aligned: 1
    eui: "0102030405060708"
    thin: true
    lbprz: false
    soft_threshold: 512KiB
    unmap_by: [unmap]
    protection: 1
    read_only: true
    write_cache: false
    removable: true
    rotation_rate: 7200
    streams: 2
    alua: {explicit: true, groups: [{id: 1, portal_groups: [1]}]}
    state: x.state
    max_transfer: 1MiB
    erase_time: 1s
    short_commands: true
  - {lun: 2, store: {kind: mem, size: 1MiB}, zones: {size: 64KiB, conventional: 1, max_open: 1, host_aware: true}}
`))
	zero := func(v reflect.Value, name string) bool {
		f := v.FieldByName(name)
		return f.IsZero() || f.Kind() == reflect.Slice && f.Len() == 0
	}
	disk := reflect.ValueOf(l.LUNs[0].Disk.Options())
	for i := range disk.NumField() {
		if name := disk.Type().Field(i).Name; name != "Zones" && zero(disk, name) {
			t.Errorf("%s isn't set", name)
		}
	}
	zones := reflect.ValueOf(*l.LUNs[1].Disk.Options().Zones)
	for i := range zones.NumField() {
		if name := zones.Type().Field(i).Name; zero(zones, name) {
			t.Errorf("Zones.%s isn't set", name)
		}
	}
}
