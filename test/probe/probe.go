// Package probe watches the SCSI devices of the running kernel with BPF: which
// of them have a budget map, how many of their commands are in flight, and
// with which tags and tokens. It also finds out which of package queue's rules
// the kernel has.
//
// Nothing is compiled on the way: the programs are assembled here, with the
// offsets that the kernel's BTF gives. What is counted is counted in the
// kernel; no event is shipped, so none is lost on the way. It takes root, and
// Linux 5.13 or later, on a little-endian 64-bit machine.
package probe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
)

// Options for [Open]. The zero value is good.
type Options struct {
	// Layout is of the running kernel; nil: [LoadLayout] finds it.
	Layout *Layout
	// MaxDevices is the number of devices there is room for, by default 256.
	// Further ones are counted as lost.
	MaxDevices int
	// MaxCommands is the number of commands in flight there is room for, of
	// all devices together, by default 32,768.
	MaxCommands int
}

var errClosed = errors.New("probe: closed")

// Probe watches. It is safe for concurrent use.
type Probe struct {
	layout  *Layout
	missing []string

	devices, commands, phases, phaseNo, control, zero *ebpf.Map

	programs []*ebpf.Program
	// The kernel detaches a program when its link is closed, which a link that
	// nobody refers to is.
	links []link.Link

	mu      sync.Mutex
	phase   uint64
	folded  map[phaseKey]Activity // phases whose records are no longer in the kernel
	earlier map[string]int        // see Device.Earlier
	closed  bool
}

// kinds are the programs, each with the raw tracepoint it is run by. Those
// that end commands come first: a command whose start is seen must not end
// unseen.
var kinds = []struct {
	tracepoint, name string
	make             func(*builder) asm.Instructions
}{
	{"scsi_dispatch_cmd_done", "lunlab_done", (*builder).doneProgram},
	{"scsi_dispatch_cmd_error", "lunlab_rejected", (*builder).rejectedProgram},
	{"scsi_dispatch_cmd_timeout", "lunlab_timeout", (*builder).timeoutProgram},
	{"block_rq_complete", "lunlab_ended", (*builder).endedProgram},
	{"block_rq_requeue", "lunlab_requeued", (*builder).endedProgram},
	{"scsi_dispatch_cmd_start", "lunlab_start", (*builder).startProgram},
}

// Open begins to watch. Its error wraps [ErrNoBTF], [ErrNoSCSI] or a
// [*MissingFieldError] where the kernel can't be watched, and fs.ErrPermission
// without root.
func Open(o Options) (*Probe, error) {
	if o.MaxDevices == 0 {
		o.MaxDevices = 256
	}
	if o.MaxCommands == 0 {
		o.MaxCommands = 32768
	}
	if o.MaxDevices < 1 || o.MaxCommands < 1 {
		return nil, fmt.Errorf("probe: room for %d devices and %d commands: want at least 1 of each", o.MaxDevices, o.MaxCommands)
	}
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 || strconv.IntSize != 64 {
		return nil, fmt.Errorf("probe: it knows little-endian 64-bit machines only, and %s is none", runtime.GOARCH)
	}
	if o.Layout == nil {
		l, err := LoadLayout()
		if err != nil {
			return nil, err
		}
		o.Layout = l
	} else if err := o.Layout.check(); err != nil {
		return nil, err
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("probe: memory limit: %w", err)
	}
	p := &Probe{layout: o.Layout, missing: o.Layout.Missing(), folded: map[phaseKey]Activity{}, earlier: map[string]int{}}
	if err := p.load(o); err != nil {
		p.Close()
		return nil, err
	}
	p.noteEarlier()
	return p, nil
}

func (p *Probe) load(o Options) error {
	for _, m := range []struct {
		at   **ebpf.Map
		spec ebpf.MapSpec
	}{
		{&p.devices, ebpf.MapSpec{Name: "lunlab_devices", Type: ebpf.Hash, KeySize: keySize, ValueSize: devSize, MaxEntries: uint32(o.MaxDevices)}},
		{&p.commands, ebpf.MapSpec{Name: "lunlab_commands", Type: ebpf.Hash, KeySize: 8, ValueSize: cmdSize, MaxEntries: uint32(o.MaxCommands)}},
		// At most three phases of a device are in the kernel: see Mark.
		{&p.phases, ebpf.MapSpec{Name: "lunlab_phases", Type: ebpf.PerCPUHash, KeySize: phaseKeySize, ValueSize: phSize, MaxEntries: 3 * uint32(o.MaxDevices)}},
		{&p.phaseNo, ebpf.MapSpec{Name: "lunlab_phase", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}},
		{&p.control, ebpf.MapSpec{Name: "lunlab_control", Type: ebpf.Array, KeySize: 4, ValueSize: ctlSize, MaxEntries: 1}},
		{&p.zero, ebpf.MapSpec{Name: "lunlab_zero", Type: ebpf.Array, KeySize: 4, ValueSize: devSize, MaxEntries: 1}},
	} {
		var err error
		if *m.at, err = ebpf.NewMap(&m.spec); err != nil {
			return fmt.Errorf("probe: map %s: %w", m.spec.Name, err)
		}
	}
	fds := mapFDs{p.devices.FD(), p.commands.FD(), p.phases.FD(), p.phaseNo.FD(), p.control.FD(), p.zero.FD()}
	for _, k := range kinds {
		b := &builder{layout: p.layout, maps: fds}
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: k.name, Type: ebpf.RawTracepoint, License: "GPL", Instructions: k.make(b)})
		if err != nil {
			return fmt.Errorf("probe: program %s: %w", k.name, err)
		}
		p.programs = append(p.programs, prog)
	}
	for i, k := range kinds {
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: k.tracepoint, Program: p.programs[i]})
		if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(k.tracepoint, "scsi_") {
			return fmt.Errorf("probe: tracepoint %s: %w", k.tracepoint, ErrNoSCSI)
		}
		if err != nil {
			return fmt.Errorf("probe: tracepoint %s: %w", k.tracepoint, err)
		}
		p.links = append(p.links, l)
	}
	return nil
}

// Close ends the watch. A second Close does nothing.
func (p *Probe) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	var errs []error
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	for _, prog := range p.programs {
		errs = append(errs, prog.Close())
	}
	for _, m := range []*ebpf.Map{p.devices, p.commands, p.phases, p.phaseNo, p.control, p.zero} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// Layout is what is known of the kernel's structures.
func (p *Probe) Layout() *Layout { return p.layout }

// Missing names the structure members that this kernel doesn't have, so that
// what they would have told isn't known. needs_budget_token and pseudo_sdev
// are missing from most kernels.
func (p *Probe) Missing() []string { return slices.Clone(p.missing) }

// Lost is what the probe could not count. While all are 0, its counts are
// exact, but for what began before it: see [Device.Earlier].
type Lost struct {
	Devices  uint64 `json:"devices"`  // events of devices there was no room for
	Commands uint64 `json:"commands"` // starts there was no room for; their ends count as unmatched
	Phases   uint64 `json:"phases"`   // starts there was no room for in a phase, and that are in no Activity
	Faults   uint64 `json:"faults"`   // starts whose structures could not be read whole
	// Missed are events that came while the same program ran on the same CPU,
	// where the kernel doesn't run it again.
	Missed uint64 `json:"missed"`
}

// Any says whether anything was lost.
func (l Lost) Any() bool { return l != Lost{} }

// String names what was lost.
func (l Lost) String() string {
	var s []string
	for _, c := range []struct {
		n    uint64
		what string
	}{
		{l.Devices, "events of devices there was no room for"},
		{l.Commands, "commands there was no room for"},
		{l.Phases, "starts there was no room for"},
		{l.Faults, "starts whose structures could not be read whole"},
		{l.Missed, "events that came within another on the same CPU"},
	} {
		if c.n > 0 {
			s = append(s, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	if len(s) == 0 {
		return "nothing"
	}
	return strings.Join(s, ", ")
}

// Lost returns what was lost since the start.
func (p *Probe) Lost() (Lost, error) {
	c, err := p.readControl()
	if err != nil {
		return Lost{}, err
	}
	l := Lost{Devices: c.LostDevice, Commands: c.LostCommand, Phases: c.LostPhase, Faults: c.Faults}
	for i, prog := range p.programs {
		s, err := prog.Stats()
		if err != nil {
			return Lost{}, fmt.Errorf("probe: program %s: %w", kinds[i].name, err)
		}
		l.Missed += s.RecursionMisses
	}
	return l, nil
}

func (p *Probe) readControl() (controlRecord, error) {
	var raw [ctlSize]byte
	if err := p.control.Lookup(uint32(0), &raw); err != nil {
		return controlRecord{}, fmt.Errorf("probe: control record: %w", err)
	}
	return decode[controlRecord](raw[:])
}

// decode reads a record as the programs write it.
func decode[T any](b []byte) (T, error) {
	var v T
	if _, err := binary.Decode(b, binary.LittleEndian, &v); err != nil {
		return v, fmt.Errorf("probe: a record of %d bytes: %w", len(b), err)
	}
	return v, nil
}

// Mark ends a phase and begins the next: what is seen from now on is counted
// in an [Activity] of its own. It returns the new phase's index in
// [Device.Phases].
//
// After a queue depth was lowered, commands that were in flight before end in
// their own time. A mark that is to tell "after" from "before" has to wait
// until no more are in flight than the new depth allows, or until they had the
// time to end.
func (p *Probe) Mark() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, errClosed
	}
	if err := p.fold(); err != nil {
		return 0, err
	}
	if err := p.phaseNo.Put(uint32(0), p.phase+1); err != nil {
		return 0, fmt.Errorf("probe: mark: %w", err)
	}
	p.phase++
	return int(p.phase), nil
}

// fold takes the records of all phases but the current one out of the kernel.
// A program that is still at one makes it anew, which then adds to what was
// taken.
func (p *Probe) fold() error {
	past := map[phaseKey]Activity{}
	err := p.eachPhase(func(k phaseKey, a Activity) {
		if k.Phase < p.phase {
			past[k] = a
		}
	})
	if err != nil {
		return err
	}
	for k, a := range past {
		var raw bytes.Buffer
		binary.Write(&raw, binary.LittleEndian, k)
		if err := p.phases.Delete(raw.Bytes()); err != nil {
			return fmt.Errorf("probe: mark: %w", err)
		}
		p.folded[k] = p.folded[k].plus(a)
	}
	return nil
}

// eachPhase calls f with each phase's record in the kernel, all CPUs together.
func (p *Probe) eachPhase(f func(phaseKey, Activity)) error {
	var (
		rawKey [phaseKeySize]byte
		rawCPU [][phSize]byte
	)
	it := p.phases.Iterate()
	for it.Next(&rawKey, &rawCPU) {
		k, err := decode[phaseKey](rawKey[:])
		if err != nil {
			return err
		}
		var sum Activity
		for _, raw := range rawCPU {
			r, err := decode[phaseRecord](raw[:])
			if err != nil {
				return err
			}
			sum = sum.plus(p.activity(r))
		}
		f(k, sum)
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("probe: phases: %w", err)
	}
	return nil
}
