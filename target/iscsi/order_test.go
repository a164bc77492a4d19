package iscsi_test

import (
	"bytes"
	"slices"
	"testing"
)

// TestAnyOrder sends data with DataPDUInOrder and DataSequenceInOrder No.
func TestAnyOrder(t *testing.T) {
	l := newLab(t, nil)
	data := random(8192, 4)
	login := func(t *testing.T, keys ...string) *raw {
		r := dial(t, l.addr)
		got := r.login(append([]string{"DataPDUInOrder=No", "DataSequenceInOrder=No", "ImmediateData=Yes"}, keys...)...)
		if got["DataPDUInOrder"] != "No" || got["DataSequenceInOrder"] != "No" {
			t.Fatalf("negotiated %v", got)
		}
		return r
	}
	check := func(t *testing.T, r *raw) {
		t.Helper()
		r.good()
		if got := r.read(16, 16); !bytes.Equal(got, data) {
			t.Error("it doesn't read back")
		}
	}
	order := []uint32{2, 0, 3, 1}
	t.Run("PDUs of a sequence", func(t *testing.T) {
		r := login(t)
		r.send(r.command(0xa0, 8192, write10(16, 16)...), nil)
		q := r.recv(0x31)
		for sn, i := range order {
			r.send(r.dataOut(sn == 3, q.u32(16), q.u32(20), uint32(sn), i*2048), data[i*2048:][:2048])
		}
		check(t, r)
	})
	t.Run("unsolicited PDUs", func(t *testing.T) {
		r := login(t, "InitialR2T=No")
		r.send(r.command(0x20, 8192, write10(16, 16)...), data[:2048])
		for sn, i := range []uint32{3, 1, 2} {
			r.send(r.dataOut(sn == 2, 0x1000+r.itt, 0xffffffff, uint32(sn), i*2048), data[i*2048:][:2048])
		}
		check(t, r)
	})
	t.Run("sequences", func(t *testing.T) {
		r := login(t, "MaxBurstLength=2048", "FirstBurstLength=512", "MaxOutstandingR2T=4")
		r.send(r.command(0xa0, 8192, write10(16, 16)...), nil)
		var qs []packet
		for range 4 {
			qs = append(qs, r.recv(0x31))
		}
		for _, q := range slices.Backward(qs) {
			off := q.u32(40)
			for sn, i := range order {
				r.send(r.dataOut(sn == 3, q.u32(16), q.u32(20), uint32(sn), off+i*512), data[off+i*512:][:512])
			}
		}
		check(t, r)
	})
	t.Run("damaged, at error recovery level 1", func(t *testing.T) {
		r := login(t, "ErrorRecoveryLevel=1")
		r.send(r.command(0xa0, 8192, write10(16, 16)...), nil)
		q := r.recv(0x31)
		r.send(r.dataOut(false, q.u32(16), q.u32(20), 0, 4096), data[4096:6144])
		r.send(r.dataOut(false, q.u32(16), q.u32(20), 2, 0), data[:2048]) // number 1 is lost
		q = r.recv(0x31)
		if q.u32(40) != 0 || q.u32(44) != 8192 {
			t.Fatalf("the recovery R2T is %v", q)
		}
		r.send(r.dataOut(true, q.u32(16), q.u32(20), 0, 0), data)
		check(t, r)
	})
	for name, pdus := range map[string][][3]uint32{ // offset, length, final
		"the same place twice":     {{0, 4096, 0}, {2048, 4096, 0}},
		"final with a gap":         {{0, 2048, 0}, {4096, 4096, 1}},
		"before the sequence":      {{0xfffff000, 4096, 0}},
		"beyond the sequence":      {{4096, 8192, 0}},
		"all of it, and once more": {{0, 4096, 0}, {4096, 4096, 0}, {0, 4096, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			r := login(t)
			r.send(r.command(0xa0, 8192, write10(16, 16)...), nil)
			q := r.recv(0x31)
			for sn, p := range pdus {
				r.send(r.dataOut(p[2] == 1, q.u32(16), q.u32(20), uint32(sn), p[0]), make([]byte, p[1]))
			}
			if name == "all of it, and once more" {
				// It was complete without the final bit.
				r.good()
				return
			}
			if key, code := r.recv(0x21).sense(); key != 0xb || code != 0x0c0d {
				t.Errorf("sense %x/%04x, want b/0c0d", key, code)
			}
			r.alive()
		})
	}
	t.Run("very many gaps", func(t *testing.T) {
		r := login(t)
		r.send(r.command(0xa0, 8192, write10(16, 16)...), nil)
		q := r.recv(0x31)
		for sn := range uint32(300) {
			r.send(r.dataOut(false, q.u32(16), q.u32(20), sn, sn*2), []byte{1})
		}
		if key, code := r.recv(0x21).sense(); key != 0xb || code != 0x0c0d {
			t.Errorf("sense %x/%04x, want b/0c0d", key, code)
		}
		r.alive()
	})
}
