package vhostuser_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"lunlab/lun"
	"lunlab/lun/store/mem"
	"lunlab/target"
	"lunlab/target/vhostuser"
)

func memoryDisk(t testing.TB, size int64, o lun.DiskOptions) *lun.Disk {
	t.Helper()
	s, err := mem.New(size)
	if err != nil {
		t.Fatal(err)
	}
	if o.BlockSize == 0 {
		o.BlockSize = 512
	}
	d, err := lun.NewDisk(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func targetOf(t testing.TB, units ...lun.Unit) *target.Target {
	t.Helper()
	tg := target.New()
	for i, u := range units {
		if _, err := tg.Add(uint16(i), u, target.Limits{}); err != nil {
			t.Fatal(err)
		}
	}
	return tg
}

func random(seed uint64, n int) []byte {
	b, r := make([]byte, n), rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// TestCommands runs commands over each kind of virtqueue and of memory.
func TestCommands(t *testing.T) {
	for _, features := range []uint64{0, eventIdx, indirect, eventIdx | indirect, eventIdx | indirect | t10pi} {
		for _, protocolBit := range []uint64{0, protocol} {
			for _, sealed := range []bool{false, true} {
				t.Run(fmt.Sprintf("%#x/%v/%v", features, protocolBit != 0, sealed), func(t *testing.T) {
					path, _ := serve(t, vhostuser.Options{Target: targetOf(t, memoryDisk(t, 1<<20, lun.DiskOptions{}))})
					f := dial(t, path, version1|protocolBit|features, sealed)
					commands(t, f.queue(2, 16))
				})
			}
		}
	}
}

func commands(t *testing.T, q *queue) {
	q.ready(0)
	data := random(1, 64<<10)
	q.good(command{cdb: rw16(write16, 8, 128), out: data})
	if got := q.good(command{cdb: rw16(read16, 8, 128), in: len(data)}); !bytes.Equal(got, data) {
		t.Error("what was read isn't what was written")
	}
	r := q.run(command{cdb: []byte{0x12, 0, 0, 0, 36, 0}, in: 255})
	if r.status != 0 || r.residual != 255-36 || r.written != 108+36 || !bytes.Contains(r.data, []byte("LUNLAB")) {
		t.Errorf("INQUIRY: %+v", r)
	}
	r = q.run(command{cdb: rw16(read16, 1<<40, 1), in: 512})
	if r.status != 2 || len(r.sense) < 14 || r.sense[2] != 5 || r.sense[12] != 0x21 || r.residual != 512 {
		t.Errorf("READ beyond the end: %+v", r)
	}
	r = q.run(command{cdb: rw16(read16, 8, 2), in: 512})
	if r.response != 1 || !bytes.Equal(r.data, data[:512]) {
		t.Errorf("READ of more than there is room for: response %d, want 1 (overrun)", r.response)
	}
	// Parameters that are looked at, in pieces.
	sel := []byte{0, 0, 0, 0, 0x0a, 10, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	r = q.run(command{cdb: []byte{0x15, 0x10, 0, 0, byte(len(sel)), 0}, out: sel})
	if r.status != 2 || r.sense[12] != 0x26 || r.sense[17] != 6 {
		t.Errorf("MODE SELECT of what can't be changed: %+v", r)
	}
	r = q.run(command{lun: 7, cdb: []byte{0x12, 0, 0, 0, 36, 0}, in: 36})
	if r.status != 0 || r.data[0] != 0x7f {
		t.Errorf("INQUIRY of no LUN: %+v", r)
	}
	if b := q.good(command{cdb: []byte{0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0}, in: 16}); b[3] != 8 {
		t.Errorf("REPORT LUNS: % x", b)
	}
	if b := q.good(command{cdb: []byte{0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0}, in: 4}); b[0] != 0xfc || b[1] != 0x03 {
		t.Errorf("REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS: % x, want no QUERY ASYNCHRONOUS EVENT", b)
	}
	if r = q.run(command{attr: 9, cdb: testUnitReady}); r.response != 9 {
		t.Errorf("a task attribute that isn't one: response %d, want 9 (failure)", r.response)
	}
}

// TestQueues runs commands over several virtqueues at once, with all attributes:
// where they are taken, and by goroutines of their own.
func TestQueues(t *testing.T) {
	t.Run("inline", func(t *testing.T) { queues(t, memoryDisk(t, 4<<20, lun.DiskOptions{})) })
	t.Run("apart", func(t *testing.T) { queues(t, target.NewMeter(memoryDisk(t, 4<<20, lun.DiskOptions{}))) })
}

func queues(t *testing.T, u lun.Unit) {
	const queues, each = 4, 300
	path, _ := serve(t, vhostuser.Options{Target: targetOf(t, u), Queues: queues})
	f := dial(t, path, version1|protocol|eventIdx|indirect, true)
	f.queue(0, 16).f.queue(1, 16)
	var qs []*queue
	for i := range queues {
		qs = append(qs, f.queue(2+i, 4))
	}
	qs[0].ready(0)
	var wg sync.WaitGroup
	for i, q := range qs {
		wg.Go(func() {
			for k := range each {
				// A head of its own for each queue, as they share the buffers.
				c := command{cdb: rw16(write16, uint64(i*1000+k), 1), out: random(uint64(i*each+k), 512), attr: byte(k % 3), id: uint64(i)}
				for range 2 {
					q.submit(uint16(i), &c)
					head, n := q.wait()
					q.result(head, n, &c)
					if c.status != 0 || c.response != 0 {
						t.Errorf("queue %d, command %d: response %d, status %#x, sense % x", i, k, c.response, c.status, c.sense)
						return
					}
					if c.in > 0 && !bytes.Equal(c.data, random(uint64(i*each+k), 512)) {
						t.Errorf("queue %d, block %d differs", i, k)
					}
					c.cdb[0], c.in, c.out = read16, 512, nil
				}
			}
		})
	}
	wg.Wait()
}

// TestAllocations sees to it that READ and WRITE allocate nothing.
func TestAllocations(t *testing.T) {
	for _, sealed := range []bool{true, false} {
		for _, features := range []uint64{eventIdx | indirect, eventIdx | indirect | t10pi} {
			path, _ := serve(t, vhostuser.Options{Target: targetOf(t, memoryDisk(t, 1<<20, lun.DiskOptions{}))})
			f := dial(t, path, version1|protocol|features, sealed)
			q := f.queue(2, 16)
			q.ready(0)
			w := command{cdb: rw16(write16, 0, 8), out: random(1, 4096)}
			r := command{cdb: rw16(read16, 0, 8), in: 4096}
			n := testing.AllocsPerRun(200, func() {
				for _, c := range []*command{&w, &r} {
					q.submit(0, c)
					q.wait()
				}
			})
			if n >= 1 && !raceEnabled {
				t.Errorf("sealed %v, features %#x: %v allocations for a WRITE and a READ", sealed, features, n)
			}
		}
	}
}

// TestLimits has what was configured in the configuration space, and held.
func TestLimits(t *testing.T) {
	path, d := serve(t, vhostuser.Options{Target: targetOf(t), Queues: 3, QueueSize: 32, CmdPerLUN: 7})
	if o := d.Options(); o.Queues != 3 || o.QueueSize != 32 || o.CmdPerLUN != 7 {
		t.Errorf("options %+v", o)
	}
	f := dial(t, path, version1|protocol, true)
	if n := le.Uint64(f.ask(17, nil)); n != 5 {
		t.Errorf("%d virtqueues, want 5", n)
	}
	space := f.ask(24, append(le.AppendUint32(le.AppendUint32(make([]byte, 4), 36), 0), make([]byte, 36)...))[12:]
	for i, want := range []uint32{3, 30, 0xffff, 7, 16, 96, 32, 0, 16383} {
		if got := le.Uint32(space[4*i:]); got != want {
			t.Errorf("configuration at %d: %d, want %d", 4*i, got, want)
		}
	}
	if b := f.ask(24, append(le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, 30), 36), 0), make([]byte, 36)...)); len(b) != 12 {
		t.Errorf("configuration beyond its end: %d bytes", len(b))
	}
	for name, ok := range map[string]bool{
		"size":     f.acked(8, state(2, 64)),
		"queue":    f.acked(8, state(5, 32)),
		"unknown":  f.acked(99, nil),
		"features": f.acked(2, u64(1<<34)),
		"sense":    f.acked(25, append(le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, 20), 4), 0), 252, 0, 0, 0)),
	} {
		if ok {
			t.Errorf("%s: what is too much wasn't refused", name)
		}
	}
	if !f.acked(8, state(2, 32)) {
		t.Error("the largest size was refused")
	}
}

func TestOptions(t *testing.T) {
	tg := target.New()
	for _, o := range []vhostuser.Options{{}, {Target: tg, Queues: 257}, {Target: tg, QueueSize: 48}, {Target: tg, QueueSize: 2048}, {Target: tg, CmdPerLUN: -1}} {
		if _, err := vhostuser.New(o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}
