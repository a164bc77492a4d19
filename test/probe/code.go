package probe

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// codeReader reads the kernel's memory with a program that is run by hand.
type codeReader struct {
	out  *ebpf.Map
	prog *ebpf.Program
}

// codeChunk is what one run reads.
const codeChunk = 64

func newCodeReader() (*codeReader, error) {
	out, err := ebpf.NewMap(&ebpf.MapSpec{Name: "lunlab_code", Type: ebpf.Array, KeySize: 4, ValueSize: codeChunk, MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("read code: map: %w", err)
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "lunlab_code", Type: ebpf.RawTracepoint, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R6, asm.R1, 0, asm.DWord), // the address
			asm.StoreImm(asm.RFP, -8, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, out.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "fail"),
			asm.Mov.Reg(asm.R1, asm.R0),
			asm.Mov.Imm(asm.R2, codeChunk),
			asm.Mov.Reg(asm.R3, asm.R6),
			asm.FnProbeReadKernel.Call(),
			asm.JNE.Imm(asm.R0, 0, "fail"),
			asm.Return(),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("fail"),
			asm.Return(),
		},
	})
	if err != nil {
		out.Close()
		return nil, fmt.Errorf("read code: program: %w", err)
	}
	return &codeReader{out, prog}, nil
}

func (r *codeReader) Close() error { return errors.Join(r.prog.Close(), r.out.Close()) }

// read returns a function's code.
func (r *codeReader) read(s symbol) ([]byte, error) {
	code := make([]byte, 0, s.size+codeChunk)
	for at := 0; at < s.size; at += codeChunk {
		ret, err := r.prog.Run(&ebpf.RunOptions{Context: [1]uint64{s.addr + uint64(at)}})
		if err != nil {
			return nil, fmt.Errorf("read code: %w", err)
		}
		if ret != 0 {
			return nil, fmt.Errorf("read code at %#x: not readable", s.addr+uint64(at))
		}
		chunk, err := r.out.LookupBytes(uint32(0))
		if err != nil {
			return nil, fmt.Errorf("read code: %w", err)
		}
		code = append(code, chunk...)
	}
	return code[:s.size], nil
}
