package vhostuser_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"lunlab/lun"
	"lunlab/target/vhostuser"
)

// TestBroken has virtqueues that are wrong reported as such, and others go on.
func TestBroken(t *testing.T) {
	const far = guestBase + memSize
	inMem := func(off uint64) uint64 { return guestBase + dataBase + off }
	response := func(d []byte, at uint16) { putDesc(d[16*at:], inMem(4096), 108, write, 0) }
	tests := map[string]func(q *queue, d []byte){
		"address outside": func(_ *queue, d []byte) { putDesc(d, far, 51, next, 1); response(d, 1) },
		"over the end":    func(_ *queue, d []byte) { putDesc(d, far-50, 51, next, 1); response(d, 1) },
		"address wraps":   func(_ *queue, d []byte) { putDesc(d, 1<<64-8, 51, next, 1); response(d, 1) },
		"longer than all": func(_ *queue, d []byte) { putDesc(d, guestBase, 1<<32-1, next, 1); response(d, 1) },
		"loop":            func(_ *queue, d []byte) { putDesc(d, inMem(0), 51, next, 0) },
		"next outside":    func(_ *queue, d []byte) { putDesc(d, inMem(0), 51, next, 16) },
		"no response":     func(_ *queue, d []byte) { putDesc(d, inMem(0), 51, 0, 0) },
		"short response": func(_ *queue, d []byte) {
			putDesc(d, inMem(0), 51, next, 1)
			putDesc(d[16:], inMem(512), 107, write, 0)
		},
		"short request": func(_ *queue, d []byte) { putDesc(d, inMem(0), 50, next, 1); response(d, 1) },
		"write, then read": func(_ *queue, d []byte) {
			response(d, 0)
			le.PutUint16(d[12:], write|next)
			putDesc(d[16:], inMem(0), 51, 0, 0)
		},
		"odd table":     func(_ *queue, d []byte) { putDesc(d, inMem(0), 17, table, 0) },
		"empty table":   func(_ *queue, d []byte) { putDesc(d, inMem(0), 0, table, 0) },
		"table outside": func(_ *queue, d []byte) { putDesc(d, far, 32, table, 0) },
		"table in a table": func(q *queue, d []byte) {
			putDesc(d, inMem(0), 32, table, 0)
			putDesc(q.f.mem[dataBase:], inMem(512), 32, table, 0)
		},
		"table that goes on": func(_ *queue, d []byte) { putDesc(d, inMem(0), 32, table|next, 1) },
		"loop in a table": func(q *queue, d []byte) {
			putDesc(d, inMem(0), 16, table, 0)
			putDesc(q.f.mem[dataBase:], inMem(512), 1, next, 0)
		},
		"head outside": func(q *queue, d []byte) { q.publish(16); q.publish(0) },
		"index jumps":  func(q *queue, d []byte) { q.avail += 17 },
		"the same head twice": func(q *queue, d []byte) {
			copy(q.f.mem[dataBase+19:], rw16(read16, 0, 1)) // which doesn't end
			putDesc(d, inMem(0), 51, next, 1)
			response(d, 1)
			q.publish(0)
		},
	}
	path, _ := serve(t, vhostuser.Options{Target: targetOf(t, lateUnit{memoryDisk(t, 1<<20, lun.DiskOptions{}), make(chan struct{})}), Queues: 2})
	for name, prepare := range tests {
		for _, sealed := range []bool{false, true} {
			f := dial(t, path, version1|protocol, sealed)
			bad, good := f.queue(2, 16), f.queue(3, 16)
			clear(f.mem[dataBase:][:8192])
			f.mem[dataBase] = 1
			prepare(bad, f.mem[bad.off:])
			bad.publish(0)
			bad.ring()
			f.waitFD(bad.errs, name)
			if s := le.Uint64(f.ask(40, nil)); s&0x40 == 0 {
				t.Errorf("%s: status %#x doesn't say that a reset is needed", name, s)
			}
			good.run(command{cdb: testUnitReady})
			f.conn.Close()
		}
	}
}

// TestMemoryGone takes memory away, or makes it shorter, while it is in use.
func TestMemoryGone(t *testing.T) {
	path, _ := serve(t, vhostuser.Options{Target: targetOf(t, memoryDisk(t, 1<<20, lun.DiskOptions{})), Queues: 2})
	t.Run("data", func(t *testing.T) {
		f := dial(t, path, version1|protocol, false)
		q := f.queue(2, 16)
		q.ready(0)
		c := command{cdb: rw16(read16, 0, 8), in: 4096}
		q.submit(0, &c)
		q.wait()
		// The virtqueue stays.
		if err := unix.Ftruncate(f.memFD, dataBase); err != nil {
			t.Fatal(err)
		}
		q.publish(0)
		q.ring()
		f.waitFD(q.errs, "no data")
		if f.acked(5, memTable(guestBase, memSize, userBase, 0), f.memFD) {
			t.Error("memory beyond its file's end was mapped")
		}
	})
	t.Run("virtqueue", func(t *testing.T) {
		f := dial(t, path, version1|protocol, false)
		q := f.queue(2, 16)
		if err := unix.Ftruncate(f.memFD, 0); err != nil {
			t.Fatal(err)
		}
		q.ring()
		f.waitFD(q.errs, "no virtqueue")
	})
	t.Run("table", func(t *testing.T) {
		f := dial(t, path, version1|protocol, true)
		q := f.queue(2, 16)
		q.ready(0)
		// Memory elsewhere, without the virtqueue.
		if f.acked(5, memTable(guestBase, 4096, userBase+memSize, 0), f.memFD) {
			t.Error("a table without the virtqueue was taken")
		}
		f.waitFD(q.errs, "no virtqueue in the table")
		// And back.
		f.must(5, memTable(guestBase, memSize, userBase, 0), f.memFD)
		f.ask(11, state(2, 0))
		q.setUp()
		q.good(command{cdb: testUnitReady})
	})
	t.Run("slots", func(t *testing.T) {
		f := dial(t, path, version1|protocol, true)
		q := f.queue(2, 16)
		q.ready(0)
		more := memfd(t, 1<<20, true)
		region := memTable(guestBase+memSize, 1<<20, userBase+memSize, 0)
		f.must(37, region, more)
		// A buffer that goes on from one region to the other.
		putDesc(f.mem[q.off:], guestBase+dataBase, 51, next, 1)
		putDesc(f.mem[q.off+16:], guestBase+dataBase+256, 108, next|write, 2)
		putDesc(f.mem[q.off+32:], guestBase+memSize-256, 512, write, 0)
		copy(f.mem[dataBase+19:], rw16(read16, 0, 1))
		f.mem[dataBase+256+11] = 99
		q.publish(0)
		q.ring()
		if _, n := q.wait(); n != 108+512 || f.mem[dataBase+256+11] != 0 {
			t.Errorf("%d bytes written, response %d", n, f.mem[dataBase+256+11])
		}
		if f.acked(37, region, more) {
			t.Error("memory that overlaps was added")
		}
		f.must(38, region)
		if f.acked(38, region) {
			t.Error("memory was removed twice")
		}
		q.publish(0)
		q.ring()
		f.waitFD(q.errs, "a buffer in memory that was removed")
	})
}

// FuzzRing fills the memory of a virtqueue, and of what its requests are in, with
// anything.
func FuzzRing(f *testing.F) {
	f.Add(uint8(2), uint16(1), []byte{0, 0, 16, 0, 0, 16, 0, 0, 51, 0, 0, 0, 1, 0, 1, 0}, []byte{1, 0, 0x40, 0})
	f.Add(uint8(0), uint16(3), []byte{0, 0, 16, 0, 0, 16, 0, 0, 24, 0, 0, 0, 1, 0, 1, 0, 0, 1, 16, 0, 0, 16, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0}, []byte{0, 0, 0, 0, 5})
	f.Add(uint8(1), uint16(16), []byte{0, 0, 16, 0, 0, 16, 0, 0, 16, 0, 0, 0, 2, 0, 0, 0}, []byte{})
	path, d := serve(f, vhostuser.Options{Target: targetOf(f, memoryDisk(f, 1<<20, lun.DiskOptions{Protection: 1}))})
	f.Fuzz(func(t *testing.T, index uint8, avail uint16, descs, data []byte) {
		for _, features := range []uint64{0, eventIdx | indirect | t10pi | hotplug} {
			g := dial(t, path, version1|protocol|features, index&0x80 == 0)
			for i := range 3 {
				g.queue(i, 16)
			}
			q := g.queues[index&0x7f%3]
			copy(g.mem[q.off:][:256], descs)
			copy(g.mem[dataBase:], data)
			for i := range 16 {
				le.PutUint16(g.mem[q.off+availOff+4+2*uint32(i):], uint16(i))
			}
			q.avail = avail - 1
			q.publish(q.avail % 16)
			q.ring()
			d.Announce(uint16(index), vhostuser.Removed)
			// It still answers, and stops.
			g.ask(11, state(q.index, 0))
			g.ask(40, nil)
			g.conn.Close()
		}
	})
}
