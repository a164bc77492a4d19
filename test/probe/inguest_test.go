package probe_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"lunlab/queue"
	"lunlab/test/probe"
)

// The tests in this file run in a guest, as its root, with a kernel whose rules
// are known: TestKernels boots it.

// guest skips a test anywhere else.
func guest(t *testing.T) {
	t.Helper()
	if os.Getenv("LUNLAB_GUEST_RULES") == "" {
		t.Skip("for a guest, which TestKernels boots")
	}
}

// guestRules are the rules that this kernel is known to have.
func guestRules(t *testing.T) queue.Rules {
	t.Helper()
	r, err := queue.Lookup(os.Getenv("LUNLAB_GUEST_RULES"))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestGuestDetectRules(t *testing.T) {
	guest(t)
	begin := time.Now()
	l, err := layout()
	if err != nil {
		t.Fatal(err)
	}
	loaded := time.Since(begin)
	begin = time.Now()
	d, err := probe.DetectRules(l)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("layout in %v, rules in %v: %s", loaded, time.Since(begin), d)
	want := guestRules(t).Name
	if len(d.Candidates) != 1 || d.Candidates[0].Name != want {
		t.Errorf("got %s, want only %s", d, want)
	}
	if want := os.Getenv("LUNLAB_GUEST_PER_CPU") != ""; d.PerCPUCounters != want {
		t.Errorf("per-CPU iorequest_cnt: got %v, want %v", d.PerCPUCounters, want)
	}
}

// debugHosts are scsi_debug's with these parameters, and what a driver that has
// slave_configure makes of them.
var debugHosts = []struct {
	params string
	limits queue.Limits
}{
	{"max_queue=64 submit_queues=1", queue.Limits{CanQueue: 64, CmdPerLUN: 64, HWQueues: 1, Configures: true}},
	{"max_queue=64 submit_queues=2", queue.Limits{CanQueue: 64, CmdPerLUN: 64, HWQueues: 2, Configures: true}},
	{"host_max_queue=64 submit_queues=2", queue.Limits{CanQueue: 64, CmdPerLUN: 64, HWQueues: 2, Configures: true, HostTagset: true}},
}

// TestGuestPredictions loads each host hard, lowers its depth, and holds all
// that was seen against the prediction.
func TestGuestPredictions(t *testing.T) {
	guest(t)
	const lowered = 8
	for _, h := range debugHosts {
		t.Run(strings.ReplaceAll(h.params, " ", ","), func(t *testing.T) {
			want, err := guestRules(t).Predict(h.limits, lowered)
			if err != nil {
				t.Fatal(err)
			}
			if want.Stuck {
				t.Skip("it would hang this kernel, as predicted: see TestGuestStuck")
			}
			d := debugDisk(t, append(strings.Fields(h.params), "delay=0")...)
			d.set(debugDriver+"/ndelay", 60_000_000) // so that all readers wait at once
			requests, dones := d.counters()
			p := open(t, probe.Options{})

			l := d.load(100)
			before := d.seenWith(p, 0, want.MaxInFlight)
			writeErr := set(d.attr("queue_depth"), lowered)
			if writeErr == nil && d.get("queue_depth") > lowered { // see queue.DepthWrite
				writeErr = set(d.attr("queue_depth"), lowered)
			}
			time.Sleep(300 * time.Millisecond) // for those in flight to end
			if phase, err := p.Mark(); err != nil || phase != 1 {
				t.Fatalf("Mark: got %d, %v, want 1", phase, err)
			}
			d.seenWith(p, 1, want.Lowered.MaxInFlight)
			time.Sleep(200 * time.Millisecond) // if there are to be more
			l.stop()
			got := d.checkExact(p, requests, dones)

			if (writeErr == nil) != want.Lowered.Accepted {
				t.Errorf("writing queue_depth: got %v, want accepted %v", writeErr, want.Lowered.Accepted)
			}
			type facts struct {
				Allocated                               bool
				MapDepth, MapShift                      int
				CanQueue, CmdPerLUN, HWQueues           int
				HostTagset                              bool
				Depth, MaxBefore, MinToken, MaxToken    int
				LoweredDepth, LoweredMapDepth, MaxAfter int
			}
			if got.HostTagset == nil {
				t.Fatal("no host_tagset")
			}
			seen := facts{before.Allocated(), before.MapDepth, before.MapShift, got.CanQueue, got.CmdPerLUN, got.HWQueues, *got.HostTagset,
				before.QueueDepth, got.Phases[0].MaxInFlight, got.Phases[0].MinToken, got.Phases[0].MaxToken,
				got.QueueDepth, got.MapDepth, got.Phases[1].MaxInFlight}
			predicted := facts{want.Allocated, want.MapDepth, want.MapShift, want.Limits.CanQueue, want.CmdPerLUN, want.HWQueues, want.Limits.HostTagset,
				want.QueueDepth, want.MaxInFlight, want.MinToken, want.MaxToken,
				want.Lowered.QueueDepth, want.Lowered.QueueDepth, want.Lowered.MaxInFlight}
			if !want.Allocated {
				predicted.LoweredMapDepth = 0
			}
			if seen != predicted {
				t.Errorf("\n got %+v\nwant %+v\n(%s; %s)", seen, predicted, want.Reason, want.Lowered.Reason)
			}
			if got.MaxTag >= 64 || got.MinTag < 0 || got.MapChanges != 0 {
				t.Errorf("tags %d to %d, %d changes of the map", got.MinTag, got.MaxTag, got.MapChanges)
			}
			t.Logf("%d starts, by queue %v; %s", got.Starts, got.Queues, want.Reason)
		})
	}
}

// TestGuestTimeouts has the driver forget commands: the error handler takes
// them back, and the counts stay exact.
func TestGuestTimeouts(t *testing.T) {
	guest(t)
	d := debugDisk(t, "max_queue=32", "submit_queues=2", "delay=0")
	requests, dones := d.counters()
	d.set(d.attr("timeout"), 1)
	p := open(t, probe.Options{})
	d.set(debugDriver+"/opts", 4) // lose every nth command
	d.set(debugDriver+"/every_nth", 400)
	l := d.load(8)
	timedOut := func() bool {
		return slices.ContainsFunc(mustSnapshot(t, p), func(dev probe.Device) bool { return dev.Address == d.addr && dev.TimedOut > 0 })
	}
	for end := time.Now().Add(time.Minute); !timedOut() && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
	}
	d.set(debugDriver+"/every_nth", 0)
	l.stop()
	got := d.checkExact(p, requests, dones)
	if got.TimedOut == 0 || got.Ended == 0 || got.TimedOut < got.Ended {
		t.Errorf("%d time-outs, %d ended by the error handler, want some", got.TimedOut, got.Ended)
	}
	if l.failed.Load() > 0 {
		t.Errorf("%d reads failed, want each to be tried again", l.failed.Load())
	}
	t.Logf("%d starts, %d time-outs, %d taken back", got.Starts, got.TimedOut, got.Ended)
}

// TestGuestRejections has the driver refuse commands, which come again.
func TestGuestRejections(t *testing.T) {
	guest(t)
	d := debugDisk(t, "max_queue=32", "submit_queues=2", "delay=0")
	requests, dones := d.counters()
	p := open(t, probe.Options{})
	d.set(debugDriver+"/opts", 0x8000)
	d.set(debugDriver+"/every_nth", 10)
	l := d.load(8)
	time.Sleep(500 * time.Millisecond)
	d.set(debugDriver+"/every_nth", 0)
	l.stop()
	got := d.checkExact(p, requests, dones)
	if got.Rejected == 0 {
		t.Error("nothing was rejected")
	}
	if got.MaxInFlight > 8 {
		t.Errorf("%d in flight from 8 readers", got.MaxInFlight)
	}
	t.Logf("%d starts, %d rejected", got.Starts, got.Rejected)
}

// TestGuestEarlierCommands opens the probe while commands are in flight.
func TestGuestEarlierCommands(t *testing.T) {
	guest(t)
	d := debugDisk(t, "max_queue=32", "submit_queues=2", "delay=0")
	if _, err := layout(); err != nil { // not while commands are about to end
		t.Fatal(err)
	}
	d.set(debugDriver+"/delay", 2500) // jiffies: 10 s at 250 Hz
	const readers = 5
	l := d.load(readers)
	for d.get("device_busy") < readers {
		time.Sleep(5 * time.Millisecond)
	}
	requests, dones := d.counters()
	p := open(t, probe.Options{})
	for len(mustSnapshot(t, p)) == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	if dev := d.seen(p); dev.Earlier+int(dev.Unmatched) != readers && dev.Earlier != 0 {
		t.Errorf("%d from before left, %d ended, want %d together", dev.Earlier, dev.Unmatched, readers)
	}
	l.cancel()
	l.wg.Wait()
	d.idle()
	got := d.seen(p)
	if got.Unmatched != readers || got.Earlier != 0 || got.InFlight != 0 || got.Starts != got.Dones {
		t.Errorf("%d unmatched ends, %d from before left, %d in flight, %d starts, %d dones; want %d, 0, 0 and all done",
			got.Unmatched, got.Earlier, got.InFlight, got.Starts, got.Dones, readers)
	}
	nowRequests, nowDones := d.counters()
	if int64(got.Starts) != nowRequests-requests || int64(got.Dones+got.Unmatched) != nowDones-dones {
		t.Errorf("%d starts and %d ends; iorequest_cnt says %d, iodone_cnt %d", got.Starts, got.Dones+got.Unmatched, nowRequests-requests, nowDones-dones)
	}
}

func mustSnapshot(t *testing.T, p *probe.Probe) []probe.Device {
	t.Helper()
	s, err := p.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestGuestHeld looks at commands that the driver takes its time over.
func TestGuestHeld(t *testing.T) {
	guest(t)
	d := debugDisk(t, "max_queue=32", "submit_queues=2", "delay=0")
	p := open(t, probe.Options{})
	d.set(debugDriver+"/delay", 500) // jiffies: 2 s at 250 Hz
	const readers = 5
	l := d.load(readers)
	for d.get("device_busy") < readers || d.seen(p).InFlight < readers {
		time.Sleep(5 * time.Millisecond)
	}
	held, err := p.Held()
	if err != nil {
		t.Fatal(err)
	}
	l.cancel()
	l.wg.Wait()
	type place struct{ queue, tag int }
	tags, tokens := map[place]bool{}, map[int]bool{}
	for _, h := range held {
		tags[place{h.Queue, h.Tag}], tokens[h.Token] = true, true
		if h.Address != d.addr || h.Queue < 0 || h.Queue > 1 || h.Tag < 0 || h.Tag >= 32 || h.Token < 0 || h.Token >= 32 || h.Age <= 0 || h.Age > time.Minute || h.TimedOut {
			t.Errorf("%+v: want one of %s, with tag and token below 32", h, d.addr)
		}
	}
	if len(held) != readers || len(tags) != readers || len(tokens) != readers {
		t.Errorf("%d readers: %d commands with %d tags and %d tokens", readers, len(held), len(tags), len(tokens))
	}
	d.idle()
	if held, err := p.Held(); err != nil || len(held) != 0 {
		t.Errorf("at rest: %v, %v", held, err)
	}
}

// TestGuestRoom opens probes that have room for less than there is to count:
// it is said, and doesn't make other counts wrong.
func TestGuestRoom(t *testing.T) {
	guest(t)
	d := debugDisk(t, "max_queue=32", "submit_queues=2", "delay=1")
	p := open(t, probe.Options{MaxCommands: 4})
	l := d.load(32)
	time.Sleep(300 * time.Millisecond)
	l.stop()
	d.idle()
	lost, err := p.Lost()
	if err != nil {
		t.Fatal(err)
	}
	got := d.seen(p)
	if lost.Commands == 0 || got.InFlight != 0 || got.Starts != got.Dones || got.Unmatched != lost.Commands {
		t.Errorf("lost %s; %d in flight, %d starts, %d dones, %d unmatched; want the lost ones unmatched",
			lost, got.InFlight, got.Starts, got.Dones, got.Unmatched)
	}
}

// TestGuestMarks makes more phases than the kernel keeps.
func TestGuestMarks(t *testing.T) {
	guest(t)
	d := debugDisk(t, "max_queue=32", "submit_queues=2", "delay=0")
	requests, dones := d.counters()
	p := open(t, probe.Options{})
	l := d.load(4)
	const marks = 40
	for range marks {
		time.Sleep(5 * time.Millisecond)
		if _, err := p.Mark(); err != nil {
			t.Fatal(err)
		}
	}
	l.stop()
	got := d.checkExact(p, requests, dones)
	if len(got.Phases) != marks+1 {
		t.Errorf("got %d phases, want %d", len(got.Phases), marks+1)
	}
	var starts, maps uint64
	for _, a := range got.Phases {
		starts += a.Starts
		maps += a.WithMap + a.WithoutMap
	}
	if starts != got.Starts || maps != got.Starts || got.Activity.Starts != starts {
		t.Errorf("%d starts in the phases, %d with and without a map, %d in all", starts, maps, got.Starts)
	}
}

// TestGuestAHCI scans an ATA drive, whose map is looked at twice: at depth 1,
// and at 32 once the drive is known.
func TestGuestAHCI(t *testing.T) {
	guest(t)
	d := waitDisk(t, "/sys/bus/pci/drivers/ahci/*/ata*/host*/target*/*:*/block/*")
	host, _, _ := strings.Cut(d.addr, ":")
	d.set(d.attr("delete"), 1)
	p := open(t, probe.Options{})
	d.set("/sys/class/scsi_host/host"+host+"/scan", "- - -")
	d = waitDisk(t, "/sys/bus/pci/drivers/ahci/*/ata*/host*/target*/*:*/block/*")
	l := d.load(8)
	time.Sleep(200 * time.Millisecond)
	l.stop()
	d.idle()
	got := d.seen(p)
	limits := got.Limits()
	limits.Configures, limits.ConfiguredDepth = true, 32
	want, err := guestRules(t).Predict(limits, 0)
	if err != nil {
		t.Fatal(err)
	}
	if limits.CanQueue != 32 || limits.CmdPerLUN != 0 || got.Driver != "ahci" {
		t.Errorf("got can_queue %d, cmd_per_lun %d, driver %q; want 32, 0, ahci", limits.CanQueue, limits.CmdPerLUN, got.Driver)
	}
	if wantFlag := guestRules(t).KnowsNeedsBudgetToken; limits.NeedsBudgetToken != wantFlag {
		t.Errorf("needs_budget_token: got %v, want %v", limits.NeedsBudgetToken, wantFlag)
	}
	changes := uint64(0)
	if want.HintFreedTwice { // allocated at first, then freed
		changes = 1
	}
	if got.Allocated() != want.Allocated || got.QueueDepth != want.QueueDepth || got.MapDepth != want.MapDepth || got.MapChanges != changes {
		t.Errorf("got map %s of %d, depth %d, %d changes; want allocated %v of %d, depth %d, %d changes (%s)",
			got.Map, got.MapDepth, got.QueueDepth, got.MapChanges, want.Allocated, want.MapDepth, want.QueueDepth, changes, want.Reason)
	}
	if !want.Allocated && (got.MaxToken != queue.NoToken || got.WithoutMap == 0) {
		t.Errorf("tokens %d to %d, %d starts without a map", got.MinToken, got.MaxToken, got.WithoutMap)
	}
}

// TestGuestStuck shows what v2's rules do to a host with slave_configure whose
// map is left out at first. It comes last: the scan never ends.
func TestGuestStuck(t *testing.T) {
	guest(t)
	h := debugHosts[0]
	want, err := guestRules(t).Predict(h.limits, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !want.Stuck {
		t.Skipf("not predicted here: %s", want.Reason)
	}
	p := open(t, probe.Options{})
	done := make(chan error, 1)
	go func() { done <- modprobe(append([]string{"scsi_debug"}, strings.Fields(h.params)...)...) }()
	select {
	case err := <-done:
		t.Errorf("the scan ended (%v), want it to hang: %s", err, want.Reason)
	case <-time.After(3 * time.Second):
	}
	for _, d := range mustSnapshot(t, p) {
		if d.Starts == 0 || d.Map != probe.MapElided || d.QueueDepth != 0 {
			t.Errorf("%s: %d starts, map %s, depth %d; want INQUIRY without a map at depth 0, and nothing after", d.Address, d.Starts, d.Map, d.QueueDepth)
		}
		t.Logf("%s: %d starts, then nothing: %s", d.Address, d.Starts, want.Reason)
	}
}
