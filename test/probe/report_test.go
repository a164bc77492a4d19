package probe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"lunlab/queue"
)

// sample is a probe that watches nothing, to turn records into devices.
func sample(l *Layout) *Probe { return &Probe{layout: l, missing: l.Missing()} }

func TestDeviceOfRecord(t *testing.T) {
	l := layout612()
	r := deviceRecord{HostNo: 6, InFlight: 3, Dones: 7, MapState: mapAllocated, CanQueue: 64, HWQueues: 8, TagQueues: 4, MapDepth: 32, MapShift: 3, QueueDepth: 32, CmdPerLUN: 32, HostTagset: 0x80, MapChanges: 1}
	r.Queues[0], r.Queues[5], r.Queues[maxQueues] = 4, 6, 9
	var raw bytes.Buffer
	if err := binary.Write(&raw, binary.LittleEndian, r); err != nil {
		t.Fatal(err)
	}
	back, err := decode[deviceRecord](raw.Bytes())
	if err != nil || back != r {
		t.Fatalf("a record comes back as %+v, %v", back, err)
	}
	d := sample(l).device(deviceKey{Channel: 1, ID: 2, LUN: 3}, back)
	if d.Address != "6:1:2:3" || !d.Allocated() || d.MapDepth != 32 || d.MapShift != 3 || d.HWQueues != 4 || d.AskedQueues != 8 || d.OtherQueues != 9 {
		t.Errorf("got %+v", d)
	}
	if len(d.Queues) != 6 || d.Queues[0] != 4 || d.Queues[5] != 6 {
		t.Errorf("queues: got %v, want [4 0 0 0 0 6]", d.Queues)
	}
	if d.HostTagset == nil || !*d.HostTagset || d.NeedsBudgetToken != nil {
		t.Errorf("host_tagset %v, needs_budget_token %v; want true and not known", d.HostTagset, d.NeedsBudgetToken)
	}
	want := queue.Limits{CanQueue: 64, CmdPerLUN: 32, HWQueues: 4, HostTagset: true}
	if got := d.Limits(); got != want {
		t.Errorf("limits: got %+v, want %+v", got, want)
	}
	// The neighbouring bits of a bit field's byte are other flags.
	r.HostTagset = 0x7f
	if d := sample(l).device(deviceKey{}, r); *d.HostTagset {
		t.Error("host_tagset is taken from its neighbours")
	}

	delete(l.Fields, "Scsi_Host.can_queue")
	delete(l.Fields, "Scsi_Host.host_tagset")
	if d := sample(l).device(deviceKey{}, r); d.CanQueue != -1 || d.HostTagset != nil {
		t.Errorf("without the fields: can_queue %d, host_tagset %v; want -1, nil", d.CanQueue, d.HostTagset)
	}
	if d := sample(l).device(deviceKey{}, deviceRecord{Unmatched: 2}); d.Map != MapUnknown || d.QueueDepth != -1 || d.CmdPerLUN != -1 {
		t.Errorf("only ends seen: map %s, depth %d, cmd_per_lun %d; want unknown, -1, -1", d.Map, d.QueueDepth, d.CmdPerLUN)
	}
}

func TestActivitySums(t *testing.T) {
	p := sample(layout612())
	a := p.activity(phaseRecord{Peak: 5, MinTag: 3, MaxTag: 9, MinToken: 1, MaxToken: 2, Starts: 10, WithMap: 10})
	b := p.activity(phaseRecord{Peak: 7, MinTag: 4, MaxTag: 63, MinToken: queue.NoToken, MaxToken: queue.NoToken, Starts: 2, WithoutMap: 2})
	want := Activity{Starts: 12, MaxInFlight: 7, MinTag: 3, MaxTag: 63, MinToken: 1, MaxToken: queue.NoToken, WithMap: 10, WithoutMap: 2}
	if got := a.plus(b); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// A CPU that saw nothing doesn't make 0 the lowest tag.
	for _, got := range []Activity{a.plus(Activity{}), Activity{}.plus(a)} {
		if got != a {
			t.Errorf("got %+v, want %+v", got, a)
		}
	}
}

func TestWriteText(t *testing.T) {
	yes, no := true, false
	r := Report{
		RulesError: "no idea",
		Missing:    []string{"Scsi_Host.needs_budget_token", "Scsi_Host.pseudo_sdev", "request.tag"},
		Lost:       Lost{Missed: 2},
		Devices: []Device{
			{Address: "6:0:0:0", Disks: []string{"sda"}, Driver: "scsi_debug", CanQueue: 64, CmdPerLUN: 64, HWQueues: 2, HostTagset: &no, QueueDepth: 8, Map: MapAllocated, MapDepth: 8, MapChanges: 2,
				Queues: []uint64{5, 6}, Activity: Activity{Starts: 11, MaxInFlight: 8, MinTag: -1, MaxTag: -1, MaxToken: 7}, TimedOut: 3, Ended: 1, Earlier: 4, Stale: 1, Rejected: 2},
			{Address: "7:0:0:0", CanQueue: -1, CmdPerLUN: 1, HWQueues: 1, HostTagset: &yes, QueueDepth: 64, Map: MapElided, InFlight: 2,
				Queues: []uint64{2}, Activity: Activity{Starts: 2, MaxInFlight: 2, MinTag: 5, MaxTag: 5, MinToken: queue.NoToken, MaxToken: queue.NoToken}},
		},
		Unseen: []string{"8:0:0:0"},
	}
	var out bytes.Buffer
	if err := r.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"kernel rules: not known: no idea",
		"6:0:0:0 sda scsi_debug 64 64 2 no 8 allocated(8) 0 8 ? 0-7 11 5 6",
		"7:0:0:0 - - ? 1 1 yes 64 elided 2 2 5 none 2 2",
		"6:0:0:0: up to 4 commands from before the watch",
		"6:0:0:0: 3 time-outs; the error handler took 1 commands back",
		"6:0:0:0: the driver was busy and refused 2 times",
		"6:0:0:0: the map came or went 2 times",
		"6:0:0:0: the end of 1 commands was not seen",
		"no command seen yet: 8:0:0:0",
		"NOT EXACT: 2 events that came within another",
		"has no such field: request.tag",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(got, "7:0:0:0: ") || strings.Contains(got, "needs_budget_token") {
		t.Errorf("remarks on what needs none:\n%s", out.String())
	}
	out.Reset()
	if err := (&Report{Rules: &Detection{}}).WriteText(&out); err != nil || !strings.Contains(out.String(), "no SCSI device") || strings.Contains(out.String(), "NOT EXACT") {
		t.Errorf("an empty report: %v\n%s", err, out.String())
	}
}

func TestAddresses(t *testing.T) {
	if _, err := Addresses("no-such-disk"); err == nil || !strings.Contains(err.Error(), "no-such-disk is no SCSI disk") {
		t.Errorf("got %v", err)
	}
	all, err := Addresses()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if got, err := Addresses(a); err != nil || len(got) != 1 || got[0] != a {
			t.Errorf("Addresses(%q): got %v, %v", a, got, err)
		}
	}
}

// TestOpenWithoutSCSI loads the programs into this kernel, whose verifier has to
// take them, up to the tracepoints that it doesn't have.
func TestOpenWithoutSCSI(t *testing.T) {
	if _, err := os.Stat("/sys/bus/scsi"); err == nil {
		t.Skip("this kernel has SCSI; the guests' tests open the probe")
	}
	p, err := Open(Options{Layout: layout612()})
	switch {
	case err == nil:
		p.Close()
		t.Error("the probe opened on a kernel without SCSI")
	case errors.Is(err, fs.ErrPermission):
		t.Skipf("no BPF here: %v", err)
	case !errors.Is(err, ErrNoSCSI):
		t.Errorf("got %v, want ErrNoSCSI", err)
	}
}
