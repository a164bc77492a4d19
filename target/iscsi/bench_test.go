package iscsi_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"testing"
	"time"
)

// BenchmarkTransfer moves 4 KiB blocks at depth 32 through one connection, client
// and target in one process. test/bench compares with other targets.
func BenchmarkTransfer(b *testing.B) {
	const depth, size = 32, 4096
	for _, write := range []bool{false, true} {
		b.Run(fmt.Sprintf("write=%v", write), func(b *testing.B) {
			l := newLab(b, nil)
			r := dial(b, l.addr)
			r.login("ImmediateData=Yes", "MaxRecvDataSegmentLength=262144")
			r.nc.SetDeadline(time.Time{})
			one := r.command(0xc0, size, read10(0, size/512)...)[:]
			answer := 48 + size
			if write {
				h := r.command(0xa0, size, write10(0, size/512)...)
				h[6] = size >> 8
				one = append(h[:], make([]byte, size)...)
				answer = 48
				r.cmdSN--
			}
			r.cmdSN--
			out := make([]byte, 0, depth*len(one))
			in := make([]byte, depth*answer)
			b.SetBytes(size)
			b.ReportAllocs()
			for i := 0; i < b.N; i += depth {
				out = out[:0]
				for tag := range uint32(depth) {
					out = append(out, one...)
					h := out[len(out)-len(one):]
					binary.BigEndian.PutUint32(h[16:], 0x8000+tag)
					binary.BigEndian.PutUint32(h[24:], r.next())
				}
				if _, err := r.nc.Write(out); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(r.nc, in); err != nil {
					b.Fatal(err)
				}
				if in[3] != 0 || in[len(in)-answer+3] != 0 {
					b.Fatalf("status %02x %02x", in[3], in[len(in)-answer+3])
				}
			}
		})
	}
}
