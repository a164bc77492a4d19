package probe

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
)

// FreeWatch counts per-CPU allocations of the kernel that are freed twice,
// of which the kernel says nothing.
type FreeWatch struct {
	freed, twice *ebpf.Map
	programs     []*ebpf.Program
	links        []link.Link
}

// percpuEvents are the tracepoints and what their programs do with the pointer,
// which is that argument of so many. The allocator frees, and tells of it, with its
// lock held, and tells of an allocation before anyone can free it: so the events
// of one pointer come in their order.
var percpuEvents = []struct {
	tracepoint    string
	pointer, args int
	freed         bool
}{
	{"percpu_alloc_percpu", 7, 10, false},
	{"percpu_free_percpu", 2, 3, true},
}

// mostFreed is how many pointers are known to be free.
const mostFreed = 1 << 16

// WatchFrees begins to count. It takes root, and a kernel whose percpu
// tracepoints have the arguments that they have had since Linux 5.19.
func WatchFrees() (_ *FreeWatch, err error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("probe: memory limit: %w", err)
	}
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fmt.Errorf("probe: %w: %w", ErrNoBTF, err)
	}
	w := new(FreeWatch)
	defer func() {
		if err != nil {
			w.Close()
		}
	}()
	// Of the pointers, those freed last are of interest.
	if w.freed, err = ebpf.NewMap(&ebpf.MapSpec{Name: "lunlab_freed", Type: ebpf.LRUHash, KeySize: 8, ValueSize: 4, MaxEntries: mostFreed}); err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	if w.twice, err = ebpf.NewMap(&ebpf.MapSpec{Name: "lunlab_twice", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}); err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	for _, e := range percpuEvents {
		if err := checkArguments(spec, e.tracepoint, e.args); err != nil {
			return nil, err
		}
		ins := w.forget(e.pointer)
		if e.freed {
			ins = w.note(e.pointer)
		}
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "lunlab_percpu", Type: ebpf.RawTracepoint, License: "GPL", Instructions: ins})
		if err != nil {
			return nil, fmt.Errorf("probe: program of %s: %w", e.tracepoint, err)
		}
		w.programs = append(w.programs, prog)
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: e.tracepoint, Program: prog})
		if err != nil {
			return nil, fmt.Errorf("probe: tracepoint %s: %w", e.tracepoint, err)
		}
		w.links = append(w.links, l)
	}
	return w, nil
}

// checkArguments sees that a tracepoint has so many arguments.
func checkArguments(spec *btf.Spec, tracepoint string, args int) error {
	var t *btf.Typedef
	if err := spec.TypeByName("btf_trace_"+tracepoint, &t); err != nil {
		return fmt.Errorf("probe: tracepoint %s: %w", tracepoint, err)
	}
	p, _ := t.Type.(*btf.Pointer)
	if p == nil {
		return fmt.Errorf("probe: tracepoint %s is a %v", tracepoint, t.Type)
	}
	f, _ := p.Target.(*btf.FuncProto)
	if f == nil || len(f.Params) != args+1 { // the tracepoint's own data comes first
		return fmt.Errorf("probe: tracepoint %s has other arguments than the %d that are known", tracepoint, args)
	}
	return nil
}

// Stack of the programs.
const (
	pcPointer = -8
	pcZero    = -12 // an index, and a value that doesn't matter
)

// forget is run when a pointer is allocated.
func (w *FreeWatch) forget(argument int) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.R1, int16(8*argument), asm.DWord),
		asm.StoreMem(asm.RFP, pcPointer, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, w.freed.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, pcPointer),
		asm.FnMapDeleteElem.Call(),
		asm.Mov.Imm(asm.R0, 0), asm.Return(),
	}
}

// note is run when a pointer is freed.
func (w *FreeWatch) note(argument int) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.R1, int16(8*argument), asm.DWord),
		asm.StoreMem(asm.RFP, pcPointer, asm.R1, asm.DWord),
		asm.StoreImm(asm.RFP, pcZero, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, w.freed.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, pcPointer),
		asm.FnMapLookupElem.Call(),
		asm.JNE.Imm(asm.R0, 0, "twice"),
		asm.LoadMapPtr(asm.R1, w.freed.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, pcPointer),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, pcZero),
		asm.Mov.Imm(asm.R4, updateAny),
		asm.FnMapUpdateElem.Call(),
		asm.Ja.Label("exit"),

		asm.LoadMapPtr(asm.R1, w.twice.FD()).WithSymbol("twice"),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, pcZero),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "exit"),
		asm.Mov.Imm(asm.R1, 1),
		atomically(asm.AddAtomic, asm.R0, asm.R1, asm.DWord, 0),

		asm.Mov.Imm(asm.R0, 0).WithSymbol("exit"), asm.Return(),
	}
}

// Twice returns how many allocations were freed that were free.
func (w *FreeWatch) Twice() (uint64, error) {
	var n uint64
	if err := w.twice.Lookup(uint32(0), &n); err != nil {
		return 0, fmt.Errorf("probe: %w", err)
	}
	return n, nil
}

// Close ends the watch.
func (w *FreeWatch) Close() error {
	var errs []error
	for _, l := range w.links {
		errs = append(errs, l.Close())
	}
	for _, p := range w.programs {
		errs = append(errs, p.Close())
	}
	for _, m := range []*ebpf.Map{w.freed, w.twice} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}
