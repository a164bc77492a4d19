package iscsi_test

import (
	"bytes"
	"slices"
	"testing"

	"lunlab/lun"
	"lunlab/target"
)

// mirror is a unit with one command, of 32 bytes and both ways: it returns the data
// that it gets turned round, as many bytes each way as its CDB says.
type mirror struct{ lun.Unit }

func (m mirror) lengths(cdb []byte) (out, in uint64) {
	if len(cdb) != 32 || cdb[0] != 0x7f {
		return 0, 0
	}
	return uint64(cdb[30]) << 9, uint64(cdb[31]) << 9
}

func (m mirror) DataLength(cdb []byte) (out, in uint64) {
	if cdb[0] != 0x7f {
		return m.Unit.DataLength(cdb)
	}
	return m.lengths(cdb)
}

func (m mirror) Execute(c *lun.Command) {
	if c.CDB[0] != 0x7f {
		m.Unit.Execute(c)
		return
	}
	out, in := m.lengths(c.CDB)
	data := slices.Concat(c.DataOut...)
	data = data[:min(uint64(len(data)), out)]
	slices.Reverse(data)
	data = append(data, make([]byte, max(0, int(in)-len(data)))...)[:in]
	for _, to := range c.DataIn {
		data = data[copy(to, data):]
	}
	c.Status, c.OutLen, c.InLen = lun.Good, out, in
}

// TestBidirectional has commands move data both ways, with a long CDB and the length of
// what is read in additional header segments, and compares the residuals of both.
func TestBidirectional(t *testing.T) {
	l := newLab(t, nil)
	const number = 9
	if _, err := l.tgt.Device.Add(number, mirror{l.tgt.Device.Units()[0].Unit()}, target.Limits{}); err != nil {
		t.Fatal(err)
	}
	for _, digests := range []string{"None", "CRC32C"} {
		for _, tt := range []struct {
			name             string
			out, in          byte   // what the command moves, in units of 512 bytes
			expected, room   uint32 // what the initiator is ready for, in bytes
			flags            byte
			residual, inLeft uint32
		}{
			{"as expected", 2, 2, 1024, 1024, 0, 0, 0},
			{"less room to read", 2, 3, 1024, 512, 0x10, 0, 1024},
			{"more room to read", 2, 2, 1024, 4096, 0x08, 0, 3072},
			{"less data", 4, 1, 1024, 512, 0x04, 1024, 0},
			{"more data", 1, 1, 1024, 512, 0x02, 512, 0},
			{"less data and more room", 4, 2, 512, 1536, 0x04 | 0x08, 1536, 512},
			{"more data and no room", 1, 2, 1024, 0, 0x02 | 0x10, 512, 1024},
			{"by R2T", 200, 200, 102400, 102400, 0, 0, 0},
		} {
			t.Run(tt.name+", digests "+digests, func(t *testing.T) {
				r := dial(t, l.addr)
				r.login("HeaderDigest="+digests, "DataDigest="+digests, "MaxRecvDataSegmentLength=8192")
				cdb := make([]byte, 32)
				cdb[0], cdb[7], cdb[30], cdb[31] = 0x7f, 24, tt.out, tt.in
				h := r.command(0xe0, tt.expected, cdb[:16]...).put(8, 0, number)
				ahs := slices.Concat([]byte{0, 17, 1, 0}, cdb[16:], []byte{0, 5, 2, 0},
					[]byte{byte(tt.room >> 24), byte(tt.room >> 16), byte(tt.room >> 8), byte(tt.room)})
				data := random(int(tt.expected), 7)
				now := min(len(data), 8192)
				h[4], h[6], h[7] = byte(len(ahs)/4), byte(now>>8), byte(now)
				r.sendSegments(h, ahs, data[:now])
				var got []byte
				sn := uint32(0)
				for {
					p, err := r.tryRecv(rawTimeout)
					switch {
					case err != nil:
						t.Fatal(err)
					case p.op() == 0x31:
						off, n := p.u32(40), p.u32(44)
						if p.u32(36) != sn {
							t.Errorf("R2TSN %d, want %d", p.u32(36), sn)
						}
						sn++
						for at, i := uint32(0), uint32(0); at < n; i++ {
							k := min(8192, n-at)
							r.send(r.dataOut(at+k == n, p.u32(16), p.u32(20), i, off+at), data[off+at:][:k])
							at += k
						}
						continue
					case p.op() == 0x25:
						if p.u32(36) != sn || p.u32(40) != uint32(len(got)) || p.bhs[1]&1 != 0 {
							t.Fatalf("Data-In %v, want number %d at %d, and no status", p, sn, len(got))
						}
						sn++
						got = append(got, p.data...)
						continue
					case p.op() != 0x21 || p.bhs[2] != 0 || p.bhs[3] != 0:
						t.Fatalf("got %v", p)
					}
					if p.bhs[1] != 0x80|tt.flags || p.u32(44) != tt.residual || p.u32(40) != tt.inLeft || p.u32(36) != sn {
						t.Errorf("flags %02x, residuals %d and %d, ExpDataSN %d; want %02x, %d, %d, %d", p.bhs[1], p.u32(44), p.u32(40), p.u32(36), 0x80|tt.flags, tt.residual, tt.inLeft, sn)
					}
					break
				}
				want := data[:min(len(data), int(tt.out)<<9)]
				slices.Reverse(want)
				want = append(want, make([]byte, max(0, int(tt.in)<<9-len(want)))...)
				if want = want[:min(int(tt.in)<<9, int(tt.room))]; !bytes.Equal(got, want) {
					t.Errorf("%d bytes came back, want %d, or they are wrong", len(got), len(want))
				}
				r.alive()
			})
		}
	}
}
