package iscsi_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"lunlab/target/iscsi"
)

// TestMalformed has sessions of each ErrorRecoveryLevel send PDUs with bits, bytes
// and lengths that are wrong. Those that are dropped come again.
func TestMalformed(t *testing.T) {
	const n, times, batch = 12, 12, 20
	l := attacked(t, func(o *iscsi.Options, _ *iscsi.Target) { o.MaxBuffer = 128 << 20 })
	// What there is for data, a session each, and lost ones. Commands may be on
	// goroutines of their own: no more than fit in the windows.
	b := within(n*64+10, 128<<20+n*2*400<<10)
	l.meanwhile(t, func() {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(2, uint64(i)))
				for range times {
					r := light(t, l, i)
					if err := r.enter("InitialR2T=No", "MaxRecvDataSegmentLength=8192", fmt.Sprint("ErrorRecoveryLevel=", i%3),
						"DefaultTime2Wait=0", "DefaultTime2Retain=1"); err != nil {
						t.Errorf("login: %v", err)
						return
					}
					var out []byte
					for range batch {
						out = append(out, r.damaged(rnd)...)
					}
					r.nc.SetDeadline(time.Now().Add(100 * time.Millisecond))
					r.nc.Write(out)
					io.Copy(io.Discard, r.nc) // until it is dropped, or for that long
					r.nc.Close()
				}
			})
		}
		wg.Wait()
		b.check(t)
	})
	b.gone(t, l)
}

// damaged is a request with something wrong, or nothing.
func (r *raw) damaged(rnd *rand.Rand) []byte {
	var h *header
	data := make([]byte, 4*rnd.IntN(300))
	switch rnd.IntN(8) {
	case 0:
		h, data = r.command(0xc0, 65536, read10(rnd.Uint32N(1000), 128)...), nil
	case 1:
		h = r.command(0xa0, uint32(rnd.IntN(8192)), write10(rnd.Uint32N(1000), 8)...)
	case 2:
		h = r.dataOut(rnd.IntN(2) == 0, 0x1000+r.itt, 0xffffffff, 0, 0)
	case 3:
		h = hdr(0x00, 0x80).put32(16, r.tag()).put32(20, 0xffffffff).put32(24, r.next())
	case 4:
		h, data = hdr(0x42, 0x80|byte(rnd.IntN(14))).put32(16, r.tag()).put32(20, r.itt).put32(24, r.cmdSN), nil
	case 5:
		h, data = hdr(0x04, 0x80).put32(16, r.tag()).put32(20, 0xffffffff).put32(24, r.next()), text("SendTargets=", "X-a=b")
	case 6:
		h, data = hdr(0x10, 0x80|byte(rnd.IntN(4))).put32(16, 0x1000+r.itt), nil
	case 7:
		h = hdr(byte(rnd.IntN(64)), 0x80).put32(16, r.tag()).put32(24, r.cmdSN)
	}
	h[5], h[6], h[7] = 0, byte(len(data)>>8), byte(len(data))
	switch rnd.IntN(4) {
	case 0:
		h[rnd.IntN(len(h))] ^= 1 << rnd.IntN(8)
	case 1:
		// Tags, numbers and lengths at their ends.
		binary.BigEndian.PutUint32(h[16+4*rnd.IntN(8):], []uint32{0, 1, 1 << 31, 1<<31 - 1, 1<<32 - 1}[rnd.IntN(5)])
	case 2:
		h[4] = byte(rnd.IntN(3)) // header segments, of what the data is
	}
	return append(append(h[:], data...), make([]byte, -len(data)&3)...)
}

// TestDigestFlood sends PDUs with wrong header and data digests, at each
// ErrorRecoveryLevel. At 0 a wrong header digest ends the connection; everything else
// is answered with Reject, or passed over, and the next command is done.
func TestDigestFlood(t *testing.T) {
	const n, floods = 4, 150
	for level := range 3 {
		t.Run(fmt.Sprint("ErrorRecoveryLevel ", level), func(t *testing.T) {
			l := attacked(t, nil)
			b := within(n+10, n*512<<10)
			l.meanwhile(t, func() {
				var wg sync.WaitGroup
				for i := range n {
					r := light(t, l, i)
					keys := []string{"HeaderDigest=CRC32C", "DataDigest=CRC32C", fmt.Sprint("ErrorRecoveryLevel=", level)}
					r.login(keys...)
					wg.Go(func() {
						for j := range floods {
							if err := r.flood(j, level); err != nil {
								t.Errorf("connection %d, time %d: %v", i, j, err)
								return
							}
							if j%3 == 0 && level == 0 {
								// A header's digest ended it.
								r.nc.Close()
								*r = *light(t, l, i)
								if err := r.enter(keys...); err != nil {
									t.Errorf("connection %d, time %d, login: %v", i, j, err)
									return
								}
							}
						}
					})
				}
				wg.Wait()
				b.check(t)
				for _, x := range l.srv.Status().Sessions {
					if x.InFlight != 0 && x.Target == testTarget {
						t.Errorf("%d commands are in flight", x.InFlight)
					}
				}
			})
		})
	}
}

// flood sends one PDU with a wrong digest: of the header, of the data of a command,
// of a NOP-Out's. It takes the Reject and sees that the connection goes on.
func (r *raw) flood(j, level int) error {
	h := hdr(0x40, 0x80).put32(16, 0x77).put32(20, 0xffffffff).put32(24, r.cmdSN).put32(28, r.expStatSN)
	if j%3 == 1 {
		h = r.command(0xa0, 512, write10(0, 1)...)
		r.cmdSN-- // as good as not sent
	}
	h[6] = 2
	out := binary.LittleEndian.AppendUint32(slices.Clone(h[:]), crc32.Checksum(h[:], crcTable))
	data := random(512, byte(j))
	sum := crc32.Checksum(data, crcTable)
	if j%3 == 0 {
		out[48] ^= 1
	} else {
		sum ^= 1 << 31
	}
	out = binary.LittleEndian.AppendUint32(append(out, data...), sum)
	if _, err := r.nc.Write(out); err != nil {
		return err
	}
	if j%3 == 0 && level == 0 {
		if p, err := r.tryRecv(rawTimeout); err == nil {
			return fmt.Errorf("got %v, want the end", p)
		} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
			return err
		}
		return nil
	}
	if j%3 != 0 {
		if p, err := r.tryRecv(rawTimeout); err != nil || p.op() != 0x3f || p.bhs[2] != 2 {
			return fmt.Errorf("got %v (%v), want Reject with reason 2", p, err)
		}
	}
	h = hdr(0x40, 0x80).put32(16, 0x78).put32(20, 0xffffffff).put32(24, r.cmdSN).put32(28, r.expStatSN)
	if _, err := r.nc.Write(binary.LittleEndian.AppendUint32(slices.Clone(h[:]), crc32.Checksum(h[:], crcTable))); err != nil {
		return err
	}
	if p, err := r.tryRecv(rawTimeout); err != nil || p.op() != 0x20 {
		return fmt.Errorf("got %v (%v), want NOP-In", p, err)
	}
	return nil
}
