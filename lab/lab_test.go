package lab_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"lunlab/lab"
	"lunlab/lun"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lab.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func load(t *testing.T, content string) *lab.Config {
	t.Helper()
	c, err := lab.Load(write(t, content))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestLoad(t *testing.T) {
	c := load(t, `
iscsi: {listen: ["127.0.0.1:3260", {address: "[::1]:0", group: 2}], isns: {server: "isns.example:3206", entity: lab1, inquiries: true}}
pools: [{name: p, size: 1MiB, exhaustion: temporary}]
targets:
  - name: a
    limits: {can_queue: 64, cmd_per_lun: 32, hw_queues: 2}
    loop: {wwn: naa.500140500000010A}
    iscsi: {name: "iqn.2026-01.example:a", alias: A, portal_groups: [1, 2]}
    vhost_user: {socket: /run/a.sock}
    alua: {explicit: true, groups: [{id: 3, portal_groups: [1, 2], state: standby, preferred: true}]}
    luns:
      - lun: 3
        store: {kind: mem, size: 64GiB, limit: 1048576, exhaustion: temporary}
        block_size: 4096
        physical_block_size: 16KiB
        lowest_aligned: 1
        vendor: V
        product: P
        revision: 1.0
        serial: 0123
        naa: naa.60014050000000000000000000000001
        eui: eui.0102030405060708
        lbprz: false
        soft_threshold: 512KiB
        form_factor: <1.8
        streams: 8
        state: /s
        thin: true
        unmap_by: [unmap, write_same_10]
        protection: 1
        read_only: true
        write_cache: false
        removable: true
        rotation_rate: 7200
        max_transfer: 1MiB
        erase_time: 1.5s
        short_commands: true
  - name: b
    luns:
      - {lun: 0, count: 3, store: &s {kind: null, size: 512}}
      - lun: 9
        store: *s
        alua: {groups: [{id: 1, portal_groups: [1]}]}
      - lun: 10
        store: {kind: nbd, address: "nbd://h/x", connections: 2, timeout: 1s, reconnect: 1m, cache: 1MiB}
      - lun: 11
        thin: true
        store: {kind: mem, size: 1MiB, pool: p}
      - lun: 12
        store: {kind: mem, size: 1MiB}
        zones: {size: 128KiB, conventional: 1, max_open: 2, host_aware: true}
`)
	naa := make([]byte, 16)
	copy(naa, "\x60\x01\x40\x50")
	naa[15] = 1
	null := lab.Store{Kind: lab.Null, Size: 512}
	want := []*lab.Target{
		{
			Name: "a", Limits: lab.Limits{CanQueue: 64, CmdPerLUN: 32, HWQueues: 2},
			Loop:      lab.Loop{WWN: "naa.500140500000010a"},
			ISCSI:     lab.ISCSITarget{Name: "iqn.2026-01.example:a", Alias: "A", PortalGroups: []uint16{1, 2}},
			VhostUser: lab.VhostUser{Socket: "/run/a.sock"},
			ALUA:      &lab.ALUA{Explicit: true, Groups: []lun.PortGroup{{ID: 3, Ports: []uint16{1, 2}, State: lun.Standby, Preferred: true}}},
			LUNs: []*lab.LUN{{
				Number: 3, Store: lab.Store{Kind: lab.Memory, Size: 64 << 30, Limit: 1 << 20, Temporary: true},
				BlockSize: 4096, PhysicalExponent: 2, LowestAligned: 1, Vendor: "V", Product: "P", Revision: "1.0",
				Serial: "0123", NAA: naa, EUI: []byte{1, 2, 3, 4, 5, 6, 7, 8}, Thin: true, Unzeroed: true, SoftThreshold: 512 << 10,
				FormFactor: 5, Streams: 8, State: "/s", UnmapBy: lun.ByUnmap | lun.ByWriteSame10,
				Protectable: true, Protection: 1, ReadOnly: true, WriteThrough: true, Removable: true,
				RotationRate: 7200, MaxTransfer: 1 << 20, EraseTime: 1500 * time.Millisecond, ShortCommands: true,
			}},
		},
		{Name: "b", LUNs: []*lab.LUN{{Number: 0, Store: null}, {Number: 1, Store: null}, {Number: 2, Store: null},
			{Number: 9, Store: null, ALUA: &lab.ALUA{Groups: []lun.PortGroup{{ID: 1, Ports: []uint16{1}}}}},
			{Number: 10, Store: lab.Store{Kind: lab.NBD, Address: "nbd://h/x", Connections: 2, Timeout: time.Second, Reconnect: time.Minute, Cache: 1 << 20}},
			{Number: 11, Store: lab.Store{Kind: lab.Memory, Size: 1 << 20, Pool: "p"}, Thin: true},
			{Number: 12, Store: lab.Store{Kind: lab.Memory, Size: 1 << 20}, Zones: &lab.Zones{Size: 128 << 10, Conventional: 1, MaxOpen: 2, HostAware: true}},
		}},
	}
	if diff := cmp.Diff(want, c.Targets, cmpopts.IgnoreUnexported(lab.LUN{}, lab.Store{}, lab.Zones{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]*lab.Pool{{Name: "p", Size: 1 << 20, Temporary: true}}, c.Pools); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(&lab.ISNS{Server: "isns.example:3206", Entity: "lab1", Inquiries: true}, c.ISCSI.ISNS); diff != "" {
		t.Errorf("isns (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]lab.Portal{{Address: "127.0.0.1:3260", Group: 1}, {Address: "[::1]:0", Group: 2}}, c.ISCSI.Listen); diff != "" {
		t.Error(diff)
	}
}

// TestMistakes shows what is said about each mistake, without the path.
func TestMistakes(t *testing.T) {
	lun := func(s string) string {
		return "targets:\n- name: a\n  luns:\n  - lun: 0\n    store: {kind: mem, size: 1MiB}\n    " + s
	}
	store := func(s string) string { return "targets:\n- name: a\n  luns:\n  - lun: 0\n    store: " + s }
	for _, tt := range []struct{ yaml, want string }{
		{"", `1:1: the file is nothing; want a mapping with the keys iscsi, pools, targets`},
		{"# nothing\n", `1:1: the file is nothing; want a mapping with the keys iscsi, pools, targets`},
		{"[]", `1:1: the file is an empty list; want a mapping with the keys iscsi, pools, targets`},
		{"target: []", `1:1: unknown key "target" in the file; did you mean "targets"?` + "\n" + `1:1: the file has no "targets"`},
		{"targets: []", `1:10: targets is an empty list; want a list with one or more items, each after a dash`},
		{"targets: 5", `1:10: targets is "5"; want a list with one or more items, each after a dash`},
		{"targets: [a]", `1:11: a target is "a"; want a mapping with the keys name, limits, loop, iscsi, vhost_user, alua, luns`},
		{"targets:\n- name: a\n", `2:3: a target has no "luns"`},
		{"targets:\n- name: a b\n  luns:\n  - {lun: 0, store: {kind: mem, size: 512}}", `2:9: name is "a b"; want 1 to 32 letters, digits, '.', '_' or '-'`},
		{"a: b: c", `1:4: not YAML: mapping value is not allowed in this context`},
		{"targets: [", `1:10: not YAML: sequence end token ']' not found`},
		{"---\ntargets: []\n---\nx: 1\n", `3:1: a second document begins here; a lab.yaml has one`},
		{lun("blocksize: 512"), `6:5: unknown key "blocksize" in a LUN; did you mean "block_size"?`},
		{lun("colour: red"), `6:5: unknown key "colour" in a LUN; its keys are lun, count, store, block_size, physical_block_size, lowest_aligned, vendor, product, revision, serial, naa, eui, thin, lbprz, soft_threshold, unmap_by, protection, read_only, write_cache, removable, rotation_rate, form_factor, streams, ata, zones, alua, state, max_transfer, erase_time, short_commands, faults`},
		{lun("block_size: 1024"), `6:17: block_size is 1024; want 512 or 4096`},
		{lun("block_size: 4K"), `6:17: block_size is 4K; want a number from 512 to 4096`},
		{lun("block_size: [512]"), `6:17: block_size is a list; want a number from 512 to 4096`},
		{lun("physical_block_size: 1000"), `6:26: physical_block_size is 1000; want block_size (512) times a power of two, up to 32768`},
		{lun("thin: yes"), `6:11: thin is "yes"; want true or false`},
		{lun("thin:"), `6:11: thin is nothing; want true or false`},
		{lun("vendor: MORE THAN 8"), `6:13: vendor "MORE THAN 8": want 1 to 8 printable ASCII characters`},
		{lun("serial: Größe"), `6:13: serial "Größe": want 1 to 64 printable ASCII characters`},
		{lun("naa: 1234"), `6:10: naa is 1234; want 16 hexadecimal digits that begin with 2, 3 or 5, or 32 that begin with 6`},
		{lun("rotation_rate: 0"), `6:20: rotation_rate is 0; want a number from 1 to 65534`},
		{lun("max_transfer: 1000"), `6:19: max_transfer is 1000 bytes; want a number of 512-byte blocks, up to 32MiB`},
		{lun("max_transfer: 33MiB"), `6:19: max_transfer is 34603008 bytes; want a number of 512-byte blocks, up to 32MiB`},
		{lun("protection: 4"), `6:17: protection is 4; want a number from 0 to 3`},
		{lun("unmap_by: [unmap]"), `6:15: unmap_by is for a LUN that is thin; set thin: true, or leave it out`},
		{lun("thin: true\n    unmap_by: [trim]"), `7:16: unmap_by is trim; want unmap, write_same_16 or write_same_10`},
		{lun("erase_time: soon"), `6:17: erase_time is soon; want a time such as 500ms, 2s or 1m`},
		{lun("lun: 1"), `6:5: key "lun" is there already, in line 4; remove one`},
		{lun("count: 300"), `6:12: count is 300; want a number from 1 to 256`},
		{lun("count: 256\n  - {lun: 1, store: {kind: mem, size: 512}}"), `7:11: LUN 1 is there already, in line 4; it has to be unique in its target`},
		{lun("count: 2\n    serial: x"), `7:13: serial can't be the same for 2 LUNs; leave it out, or write the LUNs out one by one`},
		{lun("serial: x\n  - {lun: 1, serial: x, store: {kind: mem, size: 512}}"), `7:22: serial x is taken already, in line 6; it has to be unique`},
		{lun("!!str vendor: x"), `6:5: unknown key "!!str" in a LUN; its keys are lun, count,`},
		{lun("<<: {thin: true}"), `6:5: merge keys (<<) are not supported; write the keys out`},
		{lun("vendor: *x"), `6:13: no anchor &x comes before this`},
		{store("mem"), `5:12: store is "mem"; want a mapping with the keys kind, size, limit, exhaustion, pool, path, direct, address, connections, timeout, reconnect, tls, cache`},
		{store("{size: 1}"), `5:12: store has no "kind"`},
		{store("{kind: ram, size: 512}"), `5:19: kind is ram; want mem, file, nbd or "null"`},
		{store("{kind: mem}"), `5:12: the store has no size; want a size such as 64GiB, in bytes or with the unit KiB, MiB, GiB, TiB or PiB (powers of 1024)`},
		{store("{kind: mem, size: 1GB}"), `5:30: size is 1GB; want a size such as 64GiB, in bytes or with the unit KiB, MiB, GiB, TiB or PiB (powers of 1024)`},
		{store("{kind: mem, size: -1}"), `5:30: size is -1; want a size such as`},
		{store("{kind: mem, size: 9999999999GiB}"), `5:30: size is 9999999999GiB; want a size such as`},
		{store("{kind: mem, size: 700}"), `5:12: the store has 700 bytes; want a number of 512-byte blocks`},
		{store("{kind: mem, size: 512, path: x}"), `5:41: a mem store has no path; its keys are kind, size, limit, exhaustion, pool, cache`},
		{store("{kind: mem, size: 512, limit: 512, exhaustion: soon}\n    thin: true"), `5:59: exhaustion is soon; want permanent or temporary`},
		{store("{kind: mem, size: 512, exhaustion: temporary}"), `5:47: exhaustion is for a store with a limit of its own; give it one, or the pool the exhaustion`},
		{store("{kind: file}"), `5:12: the store has no path; want that of a file or block device`},
		{store("{kind: file, path: gone.img}"), `5:31: there is no file DIR/gone.img; make it, or give a size to have it made`},
		{store("{kind: file, path: no/gone.img, size: 1MiB}"), `5:31: there is no folder DIR/no for the file; make it`},
		{store("{kind: file, path: .}"), `5:31: DIR is a folder; want a file or block device`},
		{store("{kind: file, path: lab.yaml, size: 1MiB}"), `5:31: DIR/lab.yaml has 89 bytes and not the 1048576 of size; leave size out to take the file as it is`},
		{store("{kind: file, path: lab.yaml}\n  - {lun: 1, store: {kind: file, path: ./lab.yaml}}"), `6:21: file DIR/lab.yaml is another LUN's already, in line 5; only LUNs that are all read_only can share one`},
		{store("{kind: file, path: lab.yaml}\n    count: 2"), `5:12: 2 LUNs can't lie in one file; write them out one by one`},
		{"targets:\n- name: a\n  loop: {wwn: naa.5}\n  luns:\n  - {lun: 0, store: {kind: mem, size: 512}}", `3:15: wwn is naa.5; want naa. and 16 hexadecimal digits, such as naa.5001405000000101`},
		{"targets:\n- name: a\n  limits: {can_queue: 0}\n  luns:\n  - {lun: 0, store: {kind: mem, size: 512}}", `3:23: can_queue is 0; want a number from 1 to 10240`},
		{"targets:\n- name: a\n  limits: {can_queue: 48, hw_queues: 300}\n  vhost_user: {socket: s}\n  luns:\n  - {lun: 0, store: {kind: mem, size: 512}}",
			"2:3: can_queue is 48; with vhost_user it is a virtqueue's size: want a power of two from 4 to 1024\n2:3: hw_queues is 300; with vhost_user want 256 at the most"},
		{"targets:\n- name: a\n  iscsi: {name: disk}\n  luns:\n  - {lun: 0, store: {kind: mem, size: 512}}", `3:17: name is disk; want an iSCSI name in lower case, such as iqn.2026-01.example.lunlab:disks`},
		{"iscsi: {isns: {server: 'a b'}}\ntargets:\n- name: a\n  luns:\n  - {lun: 0, store: {kind: mem, size: 512}}", `1:24: server is "a b"; want HOST or HOST:PORT of an iSNS server, such as 192.0.2.9`},
		{"iscsi: {listen: [localhost]}\ntargets:\n- name: a\n  luns:\n  - {lun: 0, store: {kind: mem, size: 512}}", `1:18: listen is localhost; want ADDRESS:PORT such as 127.0.0.1:3260 or [::1]:3260`},
		{lun("thin: true\n    soft_threshold: 1KiB"), `7:21: soft_threshold is for a store whose room is limited; give it a limit or a pool, or leave soft_threshold out`},
		{lun("lbprz: false"), `6:12: lbprz is for a LUN that is thin`},
		{lun("eui: 12"), `6:10: eui is 12; want 16, 24 or 32 hexadecimal digits`},
		{lun("form_factor: 8"), `6:18: form_factor is 8; want one of, in inches: 1.8, 2.5, 3.5, 5.25, <1.8`},
		{lun("streams: 1"), `6:14: streams is 1; want a number from 2 to 64`},
		{lun("state: no/s"), `6:12: there is no folder DIR/no for the state; make it`},
		{lun("state: s\n  - {lun: 1, state: s, store: {kind: mem, size: 512}}"), `7:21: state file DIR/s is taken already, in line 6; it has to be unique`},
		{lun("zones: {conventional: 1}"), `6:12: zones has no "size"`},
		{lun("zones: {size: 1000}"), `6:12: zones have 1000 bytes; want a number of 512-byte blocks`},
		{lun("zones: {size: 512KiB, conventional: 3}"), `6:12: 3 conventional zones of 2; want as many at the most`},
		{lun("zones: {size: 2MiB}"), `6:12: zones of 2097152 bytes in a store of 1048576 make 0 zones; want 1 to 1048576`},
		{lun("thin: true\n    zones: {size: 512KiB}"), `7:12: a zoned LUN can be neither thin nor have protection; leave them out`},
		{store("{kind: file, path: x, size: 1MiB}\n    zones: {size: 512KiB, conventional: 2}"), `6:12: 2 conventional zones of 1; want as many at the most`},
		{store("{kind: mem, size: 1MiB, cache: 1MiB}\n    zones: {size: 1MiB}"), `6:12: zones of 1048592 bytes in a store of 1048576 make 0 zones; want 1 to 1048576`},
		{lun("ata: {queue_depth: 33}"), `6:24: queue_depth is 33; want a number from 1 to 32`},
		{lun("ata: {}\n    removable: true"), `7:16: removable is for a LUN that isn't an ATA drive; leave it or ata out`},
		{lun("ata: {}\n    serial: abcdefghijklmnopqrstu"), `7:13: serial has 21 characters; an ATA drive has up to 20`},
		{lun("ata: {}\n    naa: '2001405000000007'"), `7:10: naa of an ATA drive has 16 hexadecimal digits that begin with 3 or 5`},
		{lun("ata: {}\n    rotation_rate: 2"), `7:20: rotation_rate is 2; that of an ATA drive is 1, or 1025 and up`},
		{lun("ata: {}\n    lowest_aligned: 1"), `7:21: lowest_aligned is 1; want a block of the first physical one`},
		{lun("lowest_aligned: 5"), `6:21: lowest_aligned is 5; want a block of the first physical one, which has 1`},
		{lun("physical_block_size: 4KiB\n    lowest_aligned: 8"), `7:21: lowest_aligned is 8; want a block of the first physical one, which has 8`},
		{store("{kind: mem, size: 512, limit: 512}"), `5:42: a limit or a pool is for the store of a LUN that is thin; set thin: true, or leave it out`},
		{"pools: [{name: q, size: 1MiB}]\n" + store("{kind: mem, size: 512, pool: q}"), `6:41: a limit or a pool is for the store of a LUN that is thin; set thin: true, or leave it out`},
		{"targets:\n- name: a\n  luns: []", `3:9: luns is an empty list; want a list with one or more items, each after a dash`},
		{lun("alua: {groups: [{id: 1, portal_groups: [7]}]}"), `6:45: there is no portal group 7; those that iscsi listens for are 1`},
		{lun("alua: {groups: [{id: 1, portal_groups: [1]}]}") + "\niscsi: {listen: [{address: \"127.0.0.1:0\", group: 3}, {address: \"127.0.0.1:0\", group: 2}]}\n" +
			"pools: []", `8:8: pools is an empty list`},
		{"targets:\n- name: a\n  iscsi: {portal_groups: [1]}\n  luns:\n  - {lun: 0, store: {kind: mem, size: 512}}\n" +
			"iscsi: {listen: [{address: \"127.0.0.1:0\", group: 3}, {address: \"127.0.0.1:0\", group: 2}]}", `3:27: there is no portal group 1; those that iscsi listens for are 2 3`},
		{lun("alua: {groups: []}"), `6:20: groups is an empty list; want a list with one or more items`},
		{lun("alua: {groups: [{id: 1, portal_groups: [1], state: active}]}"), `6:56: state is active; want one of active-nonoptimized, active-optimized, standby, transitioning, unavailable`},
		{lun("alua: {groups: [{id: 1, portal_groups: [1]}, {id: 1, portal_groups: [1]}]}"), `6:55: group 1 is there already, in line 6; it has to be unique` + "\n" + `6:74: portal group 1 is there already, in line 6; it has to be unique`},
		{store("{kind: nbd}"), `5:12: the store has no address; want nbd://HOST:PORT/EXPORT, nbd+unix:///EXPORT?socket=/PATH, or nbds for TLS`},
		{store("{kind: nbd, address: x}"), `5:33: x doesn't begin with nbd:, nbds:, nbd+unix: or nbds+unix: as it has to; want nbd://HOST`},
		{store("{kind: nbd, address: \"nbd://h/\", size: 1MiB}"), `5:51: a nbd store has no size; its keys are kind, address, connections, timeout, reconnect, tls, cache`},
		{store("{kind: nbd, address: \"nbd://h/\", tls: {ca: gone.pem, cert: lab.yaml}}"), `5:50: tls has only one of cert and key; want both or neither` + "\n" + `5:50: tls is for an address that begins with nbds; make it one, or leave tls out` + "\n" + `5:55: ca: stat DIR/gone.pem: no such file or directory`},
		{store("{kind: nbd, address: \"nbd://h/\", connections: 17}"), `5:58: connections is 17; want a number from 1 to 16`},
		{store("{kind: nbd, address: \"nbd://h/\"}\n  - {lun: 1, store: {kind: nbd, address: \"nbd://h/\"}}"), `6:21: export nbd://h/ is another LUN's already, in line 5`},
		{store("{kind: mem, size: 512, pool: p}\n    thin: true"), `5:41: there is no pool p; put one into pools`},
		{"pools: [{name: q, size: 1MiB}]\n" + store("{kind: mem, size: 512, limit: 512, pool: p}\n    thin: true"), `6:42: a store in a pool has no limit of its own; give the pool a size, or leave pool out` + "\n" + `6:53: there is no pool p; those in pools are q`},
		{"pools: [{name: q, size: 1MiB}, {name: q, size: 1MiB}]\n" + store("{kind: mem, size: 512}"), `1:39: pool q is taken already, in line 1; it has to be unique`},
		{"iscsi: {listen: [{address: \"127.0.0.1:3260\", group: 0}, \"127.0.0.1:3260\"]}\n" + store("{kind: mem, size: 512}"), `1:53: group is 0; want a number from 1 to 65535` + "\n" + `1:57: listen 127.0.0.1:3260 is taken already, in line 1; it has to be unique`},
		{"targets:\n- &t\n  name: a\n  luns:\n  - {lun: 0, store: {kind: mem, size: 512}}\n- *t", `3:9: name a is taken already, in line 3; it has to be unique`},
	} {
		path := write(t, tt.yaml)
		_, err := lab.Load(path)
		if err == nil {
			t.Errorf("%q: no error, want %q", tt.yaml, tt.want)
			continue
		}
		got := strings.ReplaceAll(strings.ReplaceAll(err.Error(), path+":", ""), filepath.Dir(path), "DIR")
		if !strings.HasPrefix(got, tt.want) {
			t.Errorf("%q:\n got %s\nwant %s", tt.yaml, got, tt.want)
		}
	}
}

func TestManyMistakes(t *testing.T) {
	_, err := lab.Load(write(t, "targets:\n- name: a\n  luns:\n"+strings.Repeat("  - {x: 1}\n", 50)))
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 21 || !strings.HasSuffix(lines[20], "and 130 more") {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
}

func TestNoFile(t *testing.T) {
	_, err := lab.Load(filepath.Join(t.TempDir(), "lab.yaml"))
	if err == nil || !strings.Contains(err.Error(), "lunlab example") {
		t.Errorf("error %v, want one that names lunlab example", err)
	}
}

// TestExample loads the example, opens its LUNs, and looks for every key in it.
func TestExample(t *testing.T) {
	c := load(t, string(lab.Example))
	var keys [][]string
	for _, yaml := range []string{
		"k: 1\niscsi: {k: 1, isns: {k: 1}, listen: [{k: 1}]}\npools: [{k: 1}]\n",
		"targets:\n- k: 1\n  limits: {k: 1}\n  loop: {k: 1}\n  vhost_user: {k: 1}\n  iscsi: {k: 1, access: [{k: 1, chap: {k: 1}}], redirect: {k: 1}}\n",
		"targets:\n- luns: [{k: 1, store: {k: 1, tls: {k: 1}}, zones: {k: 1}, alua: {k: 1, groups: [{k: 1}]}}]\n",
	} {
		_, err := lab.Load(write(t, yaml))
		if unknown, listed := strings.Count(err.Error(), "unknown key"), regexp.MustCompile(`its keys are (.*)`).FindAllStringSubmatch(err.Error(), -1); unknown != len(listed) || unknown != strings.Count(yaml, "k: 1") {
			t.Fatalf("not all keys are told: %v", err)
		} else {
			keys = append(keys, listed...)
		}
	}
	for _, k := range keys {
		for _, key := range strings.Split(k[1], ", ") {
			if !regexp.MustCompile(`(?m)\b` + key + `:`).Match(lab.Example) {
				t.Errorf("the example has no key %s", key)
			}
		}
	}
	l, err := c.Build(nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(l.LUNs); n != 22 {
		t.Errorf("%d LUNs, want 22", n)
	}
	if u := l.Of(c.Targets[0])[0]; u.Disk.Blocks() != 64<<30/512 || u.Disk.Options().Serial != "lab-0001" || u.Disk.Options().PhysicalExponent != 3 {
		t.Errorf("LUN 0: %d blocks, %+v", u.Disk.Blocks(), u.Disk.Options())
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	fi, err := os.Stat(filepath.Join(filepath.Dir(c.Path), "disk1.img"))
	if err != nil || fi.Size() != 10<<30 {
		t.Errorf("the file: %v, %v; want 10 GiB", fi, err)
	}
}

// What is off in the example is right too.
func TestExampleOff(t *testing.T) {
	all := strings.ReplaceAll(string(lab.Example), "\n#:", "\n")
	path := write(t, all)
	for _, name := range []string{"ca.pem", "client.pem", "client.key"} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := lab.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if u := c.Targets[0].LUNs[5]; u.Store.Kind != lab.NBD || u.Store.TLS.ServerName != "nbd.example" || c.ISCSI.DiscoveryCHAP == nil || c.Targets[1].ISCSI.Redirect == nil {
		t.Errorf("not all of it is there: %+v", u)
	}
}

// TestBuildFails has the second LUN's file in use: the first must be closed
// again, and the place be named.
func TestBuildFails(t *testing.T) {
	c := load(t, `
targets:
- name: a
  luns:
  - lun: 0
    store: {kind: file, path: a.img, size: 1MiB}
  - lun: 1
    store: {kind: file, path: b.img, size: 1MiB}
`)
	other := *c
	other.Targets = []*lab.Target{{Name: "b", LUNs: c.Targets[0].LUNs[1:]}}
	l, err := other.Build(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Build(nil); err == nil || !strings.HasPrefix(err.Error(), c.Path+":8:12: LUN 1 of a: ") {
		t.Errorf("error %v, want one at 8:12", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if l, err = c.Build(nil); err != nil {
		t.Fatalf("after the failure: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestBuildTellsOfAborts has a nexus taken off a LUN by another.
func TestBuildTellsOfAborts(t *testing.T) {
	c := load(t, "targets:\n- name: a\n  luns:\n  - {lun: 7, store: {kind: mem, size: 1MiB}}\n")
	var got []any
	l, err := c.Build(func(t *lab.Target, number int, n *lun.Nexus) { got = append(got, t.Name, number, n.Name) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	id := func(b byte) *lun.Nexus {
		tid := make([]byte, 24)
		tid[0], tid[4], tid[11] = 6, 0x50, b
		return &lun.Nexus{Initiator: tid, TargetPort: 1, Name: string(rune('a' + b))}
	}
	first, second := id(0), id(1)
	// PERSISTENT RESERVE OUT: REGISTER by both, PREEMPT AND ABORT by the second.
	out := func(n *lun.Nexus, action byte, key, serviceKey byte) {
		t.Helper()
		data := make([]byte, 24)
		data[7], data[15] = key, serviceKey
		cmd := lun.Command{Nexus: n, CDB: []byte{0x5f, action, 3, 0, 0, 0, 0, 0, 24, 0}, DataOut: [][]byte{data}}
		for range 3 { // the first have unit attentions
			if l.LUNs[0].Disk.Execute(&cmd); cmd.Status == lun.Good {
				return
			}
			if len(cmd.Sense) < 3 || lun.SenseKey(cmd.Sense[2]) != lun.UnitAttention {
				break
			}
		}
		t.Fatalf("action %#x: status %#x, sense % x", action, cmd.Status, cmd.Sense)
	}
	out(first, 0, 0, 1)
	out(second, 0, 0, 2)
	out(second, 5, 2, 1)
	if want := []any{"a", 7, "a"}; !reflect.DeepEqual(got, want) {
		t.Errorf("aborts: %v, want %v", got, want)
	}
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{"1": 1, "512B": 512, "64GiB": 64 << 30, "64 GiB": 64 << 30, "7EiB": 7 << 60} {
		if got, err := lab.ParseSize(s); got != want || err != nil {
			t.Errorf("%q: %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "0", "-1", "1GB", "1K", "8EiB", "1.5GiB", "GiB", "1GiBB", "1e9", " "} {
		if got, err := lab.ParseSize(s); err == nil {
			t.Errorf("%q: %d, want an error", s, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("targets:\n- name: a\n  luns:\n  - {lun: 0, store: {kind: mem, size: 512}}\n"))
	f.Add([]byte("a: &x [*x, !!t b, {<<: *x}]\n---\n"))
	errRE := regexp.MustCompile(`^/lab.yaml:\d+:\d+: .`)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := lab.Parse("/lab.yaml", b)
		if err != nil {
			if !errRE.MatchString(err.Error()) {
				t.Errorf("an error without a place: %v", err)
			}
			return
		}
		if len(c.Targets) == 0 {
			t.Error("no targets, and no error")
		}
	})
}
