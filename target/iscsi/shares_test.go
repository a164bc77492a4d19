package iscsi_test

import (
	"bytes"
	"testing"

	"lunlab/target/iscsi"
)

// TestShares has sessions announce writes until there is no memory for more, and
// withhold their data. One that announces no more than its share is served as if they
// weren't there; and while there is but one of them, so is one with long transfers.
func TestShares(t *testing.T) {
	const (
		most  = 12       // sessions
		limit = 96 << 20 // of which half is shared out, 4 MiB each
		share = limit / 2 / most
	)
	l := newLab(t, func(o *iscsi.Options, _ *iscsi.Target) { o.MaxBuffer, o.MaxConnections = limit, most })
	good := light(t, l, most)
	good.login("ImmediateData=No", "MaxRecvDataSegmentLength=262144")
	serve := func(hogs, blocks int) {
		t.Helper()
		for i := range 4 {
			data := random(512*blocks, byte(hogs+i))
			good.write(0, data, nil, 65536)
			if !bytes.Equal(good.read(0, uint32(blocks)), data) {
				t.Fatalf("with %d sessions that withhold data, other is read than was written", hogs)
			}
		}
	}
	serve(0, 8<<20/512)
	var used int64
	for i := range most - 1 {
		hog := light(t, l, i)
		if err := hog.enter("ImmediateData=No"); err != nil {
			t.Fatal(err)
		}
		for announced, size := 0, uint32(4<<20); size >= 512; {
			hog.send(hog.command(0xa0, size, write10(0, size/512)...).put(8, 0, unlimited), nil)
			p, err := hog.tryRecv(rawTimeout)
			switch {
			case err != nil:
				t.Fatal(err)
			case p.op() == 0x31:
				announced += int(size)
			case p.op() == 0x21 && p.bhs[3] == 0x08: // BUSY: then a shorter one
				size /= 2
			case p.op() == 0x21 && p.bhs[3] == 0x02: // a unit attention
			default:
				t.Fatalf("got %v", p)
			}
			if size < 512 && announced < share/2 {
				t.Fatalf("session %d could announce %d bytes, and has a share of %d", i, announced, share)
			}
		}
		// Nor is there memory for data that is to be sent back.
		h := hdr(0x40, 0x80).put32(16, 0x77).put32(20, 0xffffffff).put32(24, hog.cmdSN).put32(28, hog.expStatSN)
		hog.send(h, make([]byte, 8192))
		if p := hog.recv(0x3f); p.bhs[2] != 0x0a || !bytes.Equal(p.data, h[:]) {
			t.Errorf("got %v, want Reject with reason 0a", p)
		}
		hog.alive()
		b := l.srv.Status().BufferBytes
		if b > limit || b <= used {
			t.Errorf("%d sessions that withhold data take %d bytes, one less %d; want more, and at most %d", i+1, b, used, limit)
		}
		used = b
		if i == 0 {
			serve(1, 8<<20/512)
		}
		serve(i+1, 1<<20/512)
	}
}
