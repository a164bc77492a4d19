package iscsi_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

func random(n int, seed byte) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// write writes data to LUN 0 in the way that was negotiated: as much immediate
// and unsolicited data as may be, the rest as R2Ts ask for it.
func (r *raw) write(lba uint32, data []byte, p map[string]string, step int) {
	r.t.Helper()
	first := 0
	num := func(key string, def int) int {
		var n int
		if _, err := fmt.Sscan(p[key], &n); err != nil {
			return def
		}
		return n
	}
	burst := num("MaxBurstLength", 262144)
	limit := min(num("FirstBurstLength", 65536), burst, len(data))
	immediate := p["ImmediateData"] == "Yes"
	unsolicited := p["InitialR2T"] == "No"
	h := r.command(0xa0, uint32(len(data)), write10(lba, uint32(len(data)/512))...)
	itt := uint32(h[16])<<24 | uint32(h[17])<<16 | uint32(h[18])<<8 | uint32(h[19])
	if immediate {
		first = min(step, limit)
	}
	if unsolicited && first < limit {
		h[1] &^= 0x80
	}
	r.send(h, data[:first])
	if unsolicited {
		for sn := uint32(0); first < limit; sn++ {
			n := min(step, limit-first)
			r.send(r.dataOut(first+n == limit, itt, 0xffffffff, sn, uint32(first)), data[first:first+n])
			first += n
		}
	}
	// R2Ts come in order, several at a time perhaps; answer each in full.
	for sn := uint32(0); first < len(data); sn++ {
		q := r.recv(0x31)
		off, n := int(q.u32(40)), int(q.u32(44))
		if q.u32(16) != itt || q.u32(36) != sn || off != first || n == 0 || n > burst || off+n > len(data) {
			r.t.Fatalf("R2T %v, at %d of %d", q, first, len(data))
		}
		for dsn := uint32(0); n > 0; dsn++ {
			k := min(step, n)
			r.send(r.dataOut(k == n, itt, q.u32(20), dsn, uint32(off)), data[off:off+k])
			off, n = off+k, n-k
		}
		first = off
	}
	r.good()
}

// TestDataTransfer writes and reads with each combination of the keys that shape
// the transfer.
func TestDataTransfer(t *testing.T) {
	l := newLab(t, nil)
	for i, keys := range [][]string{
		{"InitialR2T=Yes", "ImmediateData=No"},
		{"InitialR2T=Yes", "ImmediateData=Yes"},
		{"InitialR2T=No", "ImmediateData=No"},
		{"InitialR2T=No", "ImmediateData=Yes"},
		{"InitialR2T=Yes", "ImmediateData=Yes", "MaxOutstandingR2T=64", "MaxBurstLength=8192"},
		{"InitialR2T=No", "ImmediateData=Yes", "MaxBurstLength=512", "FirstBurstLength=512", "MaxRecvDataSegmentLength=512"},
		{"InitialR2T=No", "ImmediateData=Yes", "HeaderDigest=CRC32C", "DataDigest=CRC32C", "MaxRecvDataSegmentLength=700"},
		{"InitialR2T=Yes", "ImmediateData=Yes", "DataDigest=CRC32C", "MaxBurstLength=5000"},
		{"InitialR2T=No", "ImmediateData=Yes", "HeaderDigest=CRC32C", "FirstBurstLength=262144", "MaxRecvDataSegmentLength=262144"},
	} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			r := dial(t, l.addr)
			p := r.login(keys...)
			for j, blocks := range []int{1, 2, 16, 17, 128, 129, 600, 4096} {
				for _, step := range []int{8192, 262144, 1000} {
					if step == 1000 && blocks > 600 {
						continue
					}
					data := random(blocks*512, byte(i*16+j))
					lba := uint32(j * 8192)
					r.write(lba, data, p, step)
					if got := r.read(lba, uint32(blocks)); !bytes.Equal(got, data) {
						t.Fatalf("%d blocks in steps of %d don't read back", blocks, step)
					}
				}
			}
		})
	}
}

// TestResiduals compares what moves with what was expected (RFC 7143 11.4.5).
func TestResiduals(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login()
	for _, tt := range []struct {
		name     string
		flags    byte
		length   uint32
		cdb      []byte
		data     int
		op       byte
		want     byte // residual flags
		residual uint32
		moved    int
	}{
		{"read, less room", 0xc0, 512, read10(0, 2), 0, 0x25, 4, 512, 512},
		{"read, more room", 0xc0, 2048, read10(0, 2), 0, 0x25, 2, 1024, 1024},
		{"read, no room", 0xc0, 0, read10(0, 2), 0, 0x21, 4, 1024, 0},
		{"read, neither way", 0x80, 0, read10(0, 2), 0, 0x21, 4, 1024, 0},
		{"read, all the room there is", 0xc0, 0xffffffff, read10(0, 1), 0, 0x25, 2, 0xffffffff - 512, 512},
		{"write, less data", 0xa0, 512, write10(0, 2), 512, 0x21, 4, 512, 0},
		{"write, more data", 0xa0, 2048, write10(0, 2), 2048, 0x21, 2, 1024, 0},
		{"write, no data", 0xa0, 0, write10(0, 2), 0, 0x21, 4, 1024, 0},
		{"no transfer, room to read", 0xc0, 4096, []byte{0}, 0, 0x21, 2, 4096, 0},
		{"INQUIRY, all the room there is", 0xc0, 0xffffffff, []byte{0x12, 0, 0, 0, 36}, 0, 0x25, 2, 0xffffffff - 36, 36},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.t = t
			r.send(r.command(tt.flags, tt.length, tt.cdb...), make([]byte, tt.data))
			p := r.recv(tt.op)
			if got := p.bhs[1] & 0x1e; got != tt.want || p.u32(44) != tt.residual {
				t.Errorf("flags %02x residual %d, want %02x %d: %v", got, p.u32(44), tt.want, tt.residual, p)
			}
			if tt.op == 0x25 && len(p.data) != tt.moved {
				t.Errorf("%d bytes came, want %d", len(p.data), tt.moved)
			}
		})
	}
}

// TestBadData sends data that breaks the rules; the command fails with the sense
// that RFC 7143 11.4.7.2 names, and the session goes on.
func TestBadData(t *testing.T) {
	l := newLab(t, nil)
	const unexpected, incorrect, crc = 0x0c0c, 0x0c0d, 0x4705
	for _, tt := range []struct {
		name string
		keys []string
		send func(r *raw)
		want uint
	}{
		{"immediate data that was negotiated away", []string{"ImmediateData=No"}, func(r *raw) {
			r.send(r.command(0xa0, 512, write10(0, 1)...), make([]byte, 512))
		}, unexpected},
		{"unsolicited data that was negotiated away", []string{"InitialR2T=Yes"}, func(r *raw) {
			h := r.command(0x20, 1024, write10(0, 2)...)
			r.send(h, make([]byte, 512))
			r.send(r.dataOut(true, 0x1000+r.itt, 0xffffffff, 0, 512), make([]byte, 512))
		}, unexpected},
		{"more immediate data than the first burst", []string{"FirstBurstLength=512"}, func(r *raw) {
			r.send(r.command(0xa0, 1024, write10(0, 2)...), make([]byte, 1024))
		}, incorrect},
		{"more immediate data than expected", nil, func(r *raw) {
			r.send(r.command(0xa0, 512, write10(0, 1)...), make([]byte, 1024))
		}, incorrect},
		{"unsolicited data beyond the first burst", []string{"InitialR2T=No", "FirstBurstLength=1024"}, func(r *raw) {
			r.send(r.command(0x20, 4096, write10(0, 8)...), make([]byte, 512))
			r.send(r.dataOut(true, 0x1000+r.itt, 0xffffffff, 0, 512), make([]byte, 1024))
		}, incorrect},
		{"unsolicited data at another place", []string{"InitialR2T=No"}, func(r *raw) {
			r.send(r.command(0x20, 4096, write10(0, 8)...), make([]byte, 512))
			r.send(r.dataOut(true, 0x1000+r.itt, 0xffffffff, 0, 1024), make([]byte, 512))
		}, incorrect},
		{"unsolicited DataSN that skips", []string{"InitialR2T=No"}, func(r *raw) {
			r.send(r.command(0x20, 4096, write10(0, 8)...), make([]byte, 512))
			r.send(r.dataOut(true, 0x1000+r.itt, 0xffffffff, 1, 512), make([]byte, 512))
		}, crc},
		{"solicited DataSN that skips", []string{"ImmediateData=No"}, func(r *raw) {
			r.send(r.command(0xa0, 4096, write10(0, 8)...), nil)
			q := r.recv(0x31)
			r.send(r.dataOut(true, 0x1000+r.itt, q.u32(20), 1, 0), make([]byte, 4096))
		}, crc},
		{"solicited data at another place", []string{"ImmediateData=No"}, func(r *raw) {
			r.send(r.command(0xa0, 4096, write10(0, 8)...), nil)
			q := r.recv(0x31)
			r.send(r.dataOut(false, 0x1000+r.itt, q.u32(20), 0, 512), make([]byte, 512))
		}, incorrect},
		{"solicited data beyond what was asked for", []string{"ImmediateData=No"}, func(r *raw) {
			r.send(r.command(0xa0, 4096, write10(0, 8)...), nil)
			q := r.recv(0x31)
			r.send(r.dataOut(true, 0x1000+r.itt, q.u32(20), 0, 0), make([]byte, 8192))
		}, incorrect},
		{"solicited data near the end of all offsets", []string{"ImmediateData=No"}, func(r *raw) {
			r.send(r.command(0xa0, 4096, write10(0, 8)...), nil)
			q := r.recv(0x31)
			r.send(r.dataOut(true, 0x1000+r.itt, q.u32(20), 0, 0xfffffe00), make([]byte, 1024))
		}, incorrect},
		{"solicited data that ends too soon", []string{"ImmediateData=No"}, func(r *raw) {
			r.send(r.command(0xa0, 4096, write10(0, 8)...), nil)
			q := r.recv(0x31)
			r.send(r.dataOut(true, 0x1000+r.itt, q.u32(20), 0, 0), make([]byte, 512))
		}, incorrect},
		{"the second sequence before the first", []string{"ImmediateData=No", "MaxOutstandingR2T=2", "MaxBurstLength=512"}, func(r *raw) {
			r.send(r.command(0xa0, 1024, write10(0, 2)...), nil)
			r.recv(0x31)
			q := r.recv(0x31)
			r.send(r.dataOut(true, 0x1000+r.itt, q.u32(20), 0, 512), make([]byte, 512))
		}, incorrect},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := dial(t, l.addr)
			r.login(tt.keys...)
			tt.send(r)
			p := r.recv(0x21)
			if p.bhs[3] != 2 || len(p.data) < 16 {
				t.Fatalf("got %v, want CHECK CONDITION", p)
			}
			if key, code := p.sense(); key != 0xb || code != tt.want {
				t.Errorf("sense %x/%04x, want b/%04x", key, code, tt.want)
			}
			// What may still come for it is ignored, and all goes on.
			r.send(r.dataOut(true, 0x1000+r.itt, 0xffffffff, 9, 0), make([]byte, 100))
			r.alive()
			r.read(0, 8)
		})
	}
}

// TestDataDigest damages data on its way.
func TestDataDigest(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login("DataDigest=CRC32C", "ImmediateData=Yes")
	damage := func(h *header, data []byte) {
		h[6], h[7] = byte(len(data)>>8), byte(len(data))
		b := append(h[:], data...)
		b = append(b, 1, 2, 3, 4)
		if _, err := r.nc.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	// A command is rejected, and as good as not sent (RFC 7143 7.8): sent
	// again with the same number, it is done.
	h := r.command(0xa0, 512, write10(0, 1)...)
	damage(h, make([]byte, 512))
	if p := r.recv(0x3f); p.bhs[2] != 2 || !bytes.Equal(p.data[:48], h[:48]) {
		t.Fatalf("got %v, want Reject with reason 2 and the header", p)
	}
	r.send(h, random(512, 1))
	r.good()
	if got := r.read(0, 1); !bytes.Equal(got, random(512, 1)) {
		t.Error("the second write isn't there")
	}
	// A Data-Out is rejected, and its command fails.
	r.send(r.command(0xa0, 1024, write10(0, 2)...), make([]byte, 512))
	q := r.recv(0x31)
	damage(r.dataOut(true, q.u32(16), q.u32(20), 0, 512), make([]byte, 512))
	if p := r.recv(0x3f); p.bhs[2] != 2 {
		t.Fatalf("got %v, want Reject with reason 2", p)
	}
	p := r.recv(0x21)
	if key, code := p.sense(); key != 0xb || code != 0x4705 {
		t.Errorf("sense %x/%04x, want b/4705", key, code)
	}
	if got := r.read(0, 1); !bytes.Equal(got, random(512, 1)) {
		t.Error("the damaged write was done")
	}
}
