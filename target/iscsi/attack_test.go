package iscsi_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/lun/store/mem"
	"lunlab/target"
	"lunlab/target/iscsi"
)

// The tests of this file attack a server, and have somebody use it meanwhile. Each
// states what memory and how many goroutines the server may come to; both are
// measured for the whole process, the attackers among it.

// slack is for what the runtime and the pools hold back.
const slack = 8 << 20

// quietTarget is the one that isn't attacked, of the same server.
const quietTarget = testTarget + ":quiet"

// attacked starts a lab with another target for a well-behaved initiator.
func attacked(t *testing.T, set func(*iscsi.Options, *iscsi.Target)) *lab {
	t.Helper()
	s, err := mem.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := lun.NewDisk(s, lun.DiskOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := target.New()
	for n := range uint16(2) { // as many as raw.login looks at
		if _, err := d.Add(n, disk, target.Limits{}); err != nil {
			t.Fatal(err)
		}
	}
	return newLab(t, func(o *iscsi.Options, tgt *iscsi.Target) {
		tgt.CanQueue = 64
		o.Targets = append(o.Targets, &iscsi.Target{Name: quietTarget, Device: d})
		if set != nil {
			set(o, tgt)
		}
	})
}

// bounds are what a server may come to beyond what it was when they were made.
type bounds struct {
	goroutines int
	bytes      int64
	base       struct {
		goroutines int
		bytes      int64
	}
}

func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

func within(goroutines int, bytes int64) *bounds {
	b := &bounds{goroutines: goroutines, bytes: bytes}
	b.base.goroutines, b.base.bytes = runtime.NumGoroutine(), inUse()
	return b
}

// check looks now.
func (b *bounds) check(t *testing.T) {
	t.Helper()
	if n := runtime.NumGoroutine() - b.base.goroutines; n > b.goroutines {
		t.Errorf("%d goroutines more, want at most %d", n, b.goroutines)
	}
	if n := inUse() - b.base.bytes; n > b.bytes+slack {
		t.Errorf("%d KiB more are in use, want at most %d", n>>10, (b.bytes+slack)>>10)
	}
}

// gone waits until nothing is left of goroutines, of buffers and of the rest.
func (b *bounds) gone(t *testing.T, l *lab) {
	t.Helper()
	l.rest(t)
	var goroutines int
	var bytes, buffers int64
	for deadline := time.Now().Add(rawTimeout); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		goroutines, buffers = runtime.NumGoroutine()-b.base.goroutines, l.srv.Status().BufferBytes
		if goroutines > 0 || buffers > 0 {
			continue
		}
		if bytes = inUse() - b.base.bytes; bytes <= slack {
			return
		}
	}
	t.Errorf("left are %d goroutines, %d bytes of buffers, %d KiB", goroutines, buffers, bytes>>10)
}

// meanwhile has a well-behaved initiator write and read back while f attacks. Each of
// its commands has to succeed, and 20 are begun and done at the least while f runs or
// what it has left is there.
func (l *lab) meanwhile(t *testing.T, f func()) {
	t.Helper()
	var done atomic.Int32
	var stop atomic.Bool
	var wg sync.WaitGroup
	r := dial(t, l.addr)
	r.isid = [6]byte{0x80, 9, 9, 9, 9, 9}
	r.target = quietTarget
	r.login()
	wg.Go(func() {
		for i := byte(0); !stop.Load(); i++ {
			data := random(4096, i)
			b, err := r.exchange(r.command(0xa0, 4096, write10(uint32(i), 8)...), data)
			if err == nil {
				b, err = r.exchange(r.command(0xc0, 4096, read10(uint32(i), 8)...), nil)
			}
			if err != nil || !bytes.Equal(b, data) {
				t.Errorf("the well-behaved initiator, after %d times: %v", i, err)
				done.Store(1 << 20)
				return
			}
			done.Add(1)
		}
	})
	f()
	for deadline := time.Now().Add(rawTimeout); done.Load() < 20; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("the well-behaved initiator was served %d times", done.Load())
			break
		}
	}
	stop.Store(true)
	wg.Wait()
	r.nc.Close()
}

// exchange sends a command with all its data and returns the data of the answer,
// which has to be GOOD. It answers pings, and may be called on any goroutine.
func (r *raw) exchange(h *header, data []byte) (in []byte, err error) {
	h[5], h[6], h[7] = 0, byte(len(data)>>8), byte(len(data))
	if _, err := r.nc.Write(append(slices.Clone(h[:]), data...)); err != nil {
		return nil, err
	}
	for {
		p, err := r.tryRecv(rawTimeout)
		switch {
		case err != nil:
			return nil, err
		case p.op() == 0x20 && p.u32(16) == 0xffffffff:
			r.nc.Write(hdr(0x40, 0x80).put32(16, 0xffffffff).put32(20, p.u32(20)).put32(24, r.cmdSN).put32(28, r.expStatSN)[:])
		case p.op() == 0x25:
			in = append(in, p.data...)
			if p.bhs[1]&1 != 0 && p.bhs[3] == 0 {
				return in, nil
			}
		case p.op() == 0x21 && p.bhs[2] == 0 && p.bhs[3] == 0:
			return in, nil
		default:
			return nil, fmt.Errorf("got %v", p)
		}
	}
}

// light is dial for one of many: it has little memory of its own.
func light(t *testing.T, l *lab, n int) *raw {
	t.Helper()
	nc, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return &raw{t: t, nc: nc, r: bufio.NewReaderSize(nc, 512), cmdSN: 100, isid: [6]byte{0x80, 7, 7, 7, byte(n >> 8), byte(n)}}
}

// enter is login for any goroutine.
func (r *raw) enter(pairs ...string) error {
	h, data := r.loginHeader(1, 3), text(append(r.names(), pairs...)...)
	h[6], h[7] = byte(len(data)>>8), byte(len(data))
	if _, err := r.nc.Write(append(append(h[:], data...), make([]byte, -len(data)&3)...)); err != nil {
		return err
	}
	p, err := r.tryRecv(rawTimeout)
	if err != nil {
		return err
	}
	if s := p.u16(36); s != 0 {
		return fmt.Errorf("status %04x", s)
	}
	got := values(p.data)
	r.tsih, r.hd, r.dd = p.u16(14), got["HeaderDigest"] == "CRC32C", got["DataDigest"] == "CRC32C"
	return nil
}

// TestHalfLogins leaves 500 logins where they have come to: connected, amid a header,
// amid text that goes on, between stages, asked for a CHAP response. All end after
// the login time-out, also those that send a byte now and then.
func TestHalfLogins(t *testing.T) {
	const n = 500
	l := attacked(t, func(o *iscsi.Options, tgt *iscsi.Target) {
		o.LoginTimeout = 5 * time.Second
		withCHAP(false)(o, tgt)
	})
	// A goroutine each; an input buffer of 10 KiB, a stack, and what text there is:
	// 64 KiB in the worst of the five.
	b := within(n+10, n*40<<10+n/5*128<<10)
	var conns []*raw
	l.meanwhile(t, func() {
		for i := range n {
			r := light(t, l, i)
			conns = append(conns, r)
			switch i % 5 {
			case 1:
				r.nc.Write(make([]byte, i%48))
			case 2:
				for range 8 {
					h := r.loginHeader(0, -1)
					h[1] |= 0x40
					r.send(h, bytes.Repeat([]byte("a"), 8000))
					r.recv(0x23)
				}
			case 3:
				r.tryLogin(0, -1, names()...)
			case 4:
				r.chap("7")
			}
		}
		b.check(t)
		// Meanwhile some trickle, which doesn't help them.
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for _, r := range conns {
				r.nc.SetReadDeadline(time.Now().Add(rawTimeout))
				// One whose bytes have become a header is told what is wrong with it.
				if _, err := io.Copy(io.Discard, r.nc); err != nil {
					if ne, ok := err.(net.Error); !ok || !ne.Timeout() {
						continue
					}
					t.Error("an unfinished login stays")
					return
				}
			}
		}()
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			select {
			case <-tick.C:
				for _, r := range conns[:50] {
					r.nc.Write([]byte{0}) // fails when it is over
				}
				continue
			case <-ended:
				tick.Stop()
			}
			break
		}
	})
	b.gone(t, l)
}

// TestIdleSessions has 500 sessions that were used once and then do nothing.
func TestIdleSessions(t *testing.T) {
	const n = 500
	l := attacked(t, nil)
	// 64 KiB to read into and 68 KiB for answers, a goroutine and what is known of
	// the session.
	b := within(n+10, n*176<<10)
	l.meanwhile(t, func() {
		var conns []*raw
		for i := range n {
			r := light(t, l, i)
			if err := r.enter(); err != nil {
				t.Fatal(err)
			}
			r.send(r.command(0xc0, 4096, read10(uint32(i), 8)...), nil)
			r.recv(0x21) // a unit attention
			r.read(uint32(i), 8)
			conns = append(conns, r)
		}
		b.check(t)
		if got := len(l.srv.Status().Sessions); got != n+1 {
			t.Errorf("there are %d sessions, want %d", got, n+1)
		}
		for _, r := range conns {
			r.nc.Close()
		}
	})
	b.gone(t, l)
}

// TestHalfOpen has 100 sessions whose initiators are gone without a word, with writes
// that wait for their data. The server notices, and gives all back.
func TestHalfOpen(t *testing.T) {
	const n, writes, size = 100, 4, 64 << 10
	l := attacked(t, func(o *iscsi.Options, _ *iscsi.Target) { o.PingInterval = 2 * time.Second })
	// Buffers for the data beside what a session has. A goroutine each, and one
	// that writes the ping.
	b := within(2*n+10, n*(176<<10+writes*(size+8<<10)))
	var conns []*raw
	l.meanwhile(t, func() {
		for i := range n {
			r := light(t, l, i)
			if err := r.enter("ImmediateData=No"); err != nil {
				t.Fatal(err)
			}
			// The first is told of a unit attention; pings may come between.
			for range 1 + writes {
				r.send(r.command(0xa0, size, write10(0, size/512)...).put(8, 0, unlimited), nil)
			}
			for asked := 0; asked < writes; {
				p, err := r.tryRecv(rawTimeout)
				if err != nil {
					t.Fatal(err)
				}
				if p.op() == 0x31 {
					asked++
				}
			}
			conns = append(conns, r)
		}
		b.check(t)
		for _, r := range conns {
			r.closed() // after a ping
		}
	})
	b.gone(t, l)
}

// TestTrickle has sessions begin PDUs of all kinds and sizes, and send the rest of
// them a byte at a time. They end amid it.
func TestTrickle(t *testing.T) {
	const n = 60
	l := attacked(t, nil)
	// A session, 256 KiB for the longest PDU, and as much for the data of a write
	// (1 MiB for the fourth of them that has R2Ts).
	b := within(n+10, n*(176<<10+2*264<<10)+n/4<<20)
	l.meanwhile(t, func() {
		rest := make([][]byte, n)
		var conns []*raw
		for i := range n {
			r := light(t, l, i)
			conns = append(conns, r)
			long := func(h *header, n int) []byte {
				h[5], h[6], h[7] = byte(n>>16), byte(n>>8), byte(n)
				return append(h[:], make([]byte, n)...)
			}
			switch i % 4 {
			case 0: // a header
				r.login()
				rest[i] = r.command(0xc0, 512, read10(0, 1)...)[:]
			case 1: // a NOP-Out with the most data that there may be
				r.login()
				rest[i] = long(hdr(0x40, 0x80).put32(16, 1).put32(20, 0xffffffff).put32(24, r.cmdSN), 256<<10)
			case 2: // a write, its data with it
				r.login("FirstBurstLength=262144")
				rest[i] = long(r.command(0xa0, 256<<10, write10(0, 512)...), 256<<10)
			case 3: // Data-Out
				r.login("ImmediateData=No")
				r.send(r.command(0xa0, 1<<20, write10(0, 2048)...).put(8, 0, unlimited), nil)
				q := r.recv(0x31)
				rest[i] = long(r.dataOut(false, q.u32(16), q.u32(20), 0, 0), 256<<10)
			}
			k := min(47, 1+i)
			r.nc.Write(rest[i][:k])
			rest[i] = rest[i][k:]
		}
		for range 100 {
			for i, r := range conns {
				if len(rest[i]) > 0 {
					if _, err := r.nc.Write(rest[i][:1]); err != nil {
						t.Fatal(err)
					}
					rest[i] = rest[i][1:]
				}
			}
		}
		b.check(t)
		for i, r := range conns {
			if i%8 < 4 {
				r.nc.(*net.TCPConn).SetLinger(0)
			}
			r.nc.Close()
		}
	})
	b.gone(t, l)
}

// TestOrphans leaves session after session at ErrorRecoveryLevel 2, each with a write
// that waits for data: they may be recovered for a while. There are no more of them
// than there may be connections, and the well-behaved initiator isn't one of those
// that make room.
func TestOrphans(t *testing.T) {
	const most, n = 16, 100
	l := attacked(t, func(o *iscsi.Options, _ *iscsi.Target) { o.MaxConnections = most })
	// What waits has its buffer; of the rest of a connection little is left.
	b := within(most+10, most*(64<<10+176<<10))
	l.meanwhile(t, func() {
		for i := range n {
			r := light(t, l, i)
			for deadline := time.Now().Add(rawTimeout); r.enter("ErrorRecoveryLevel=2", "ImmediateData=No") != nil; r = light(t, l, i) {
				if time.Now().After(deadline) {
					t.Fatal("no login succeeds any more")
				}
				r.nc.Close() // those before it are on their way
				time.Sleep(time.Millisecond)
			}
			r.send(r.command(0xa0, 64<<10, write10(0, 128)...).put(8, 0, unlimited), nil)
			if p, err := r.tryRecv(rawTimeout); err != nil || p.op() != 0x31 && p.op() != 0x21 {
				t.Fatalf("got %v (%v)", p, err)
			}
			r.nc.Close()
		}
		if got := len(l.srv.Status().Sessions); got > most {
			t.Errorf("there are %d sessions, want at most %d", got, most)
		}
		b.check(t)
	})
}
