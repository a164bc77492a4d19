package iscsi_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"lunlab/target/iscsi"
)

// TestHugeLengths asks for transfers near all that a length field can say. Each
// gets an answer, and no memory to match.
func TestHugeLengths(t *testing.T) {
	l := newLab(t, func(o *iscsi.Options, _ *iscsi.Target) { o.MaxBuffer = 80 << 20 })
	r := dial(t, l.addr)
	r.login()
	b := within(10, 21<<20) // what a session may have of the 80 MiB
	defer b.check(t)
	read16 := append([]byte{0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0xff, 0xff, 0xff, 0xff)
	write16 := append([]byte{0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0xff, 0xff, 0xff, 0xff)
	for _, cdb := range [][]byte{
		read16, write16,
		{0x12, 0, 0, 0xff, 0xff},                         // INQUIRY
		{0x1a, 0, 0x3f, 0, 0xff},                         // MODE SENSE(6)
		{0x5a, 0, 0x3f, 0, 0, 0, 0, 0xff, 0xff},          // MODE SENSE(10)
		{0xa0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff},    // REPORT LUNS
		{0x5e, 0, 0, 0, 0, 0, 0, 0xff, 0xff},             // PERSISTENT RESERVE IN
		{0x5f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff},       // PERSISTENT RESERVE OUT
		{0x42, 0, 0, 0, 0, 0, 0, 0xff, 0xff},             // UNMAP
		{0x41, 0, 0, 0, 0, 0, 0, 0xff, 0xff},             // WRITE SAME(10)
		{0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff}, // COMPARE AND WRITE
		{0x55, 0x10, 0, 0, 0, 0, 0, 0xff, 0xff},          // MODE SELECT(10)
		{0x3b, 2, 0, 0, 0, 0, 0xff, 0xff, 0xff},          // WRITE BUFFER
		{0xff},
	} {
		for _, lun := range []byte{0, 7} {
			for _, flags := range []byte{0x80, 0xc0, 0xa0, 0xe0} {
				h := r.command(flags, 0xffffffff, cdb...).put(8, 0, lun)
				r.send(h, nil)
				for done := false; !done; {
					p, err := r.tryRecv(rawTimeout)
					if err != nil {
						t.Fatalf("CDB %x, flags %02x, LUN %d: %v", cdb, flags, lun, err)
					}
					switch p.op() {
					case 0x21:
						done = true
					case 0x25:
						done = p.bhs[1]&1 != 0
					case 0x31:
						// It wants data; it shall have it.
						n := int(p.u32(44))
						for off, sn := 0, uint32(0); off < n; sn++ {
							k := min(8192, n-off)
							r.send(r.dataOut(off+k == n, p.u32(16), p.u32(20), sn, p.u32(40)+uint32(off)), make([]byte, k))
							off += k
						}
					default:
						t.Fatalf("CDB %x, flags %02x: %v", cdb, flags, p)
					}
				}
			}
		}
	}
	r.attend()
	r.read(0, 1)
}

// TestTooManyConnections refuses what is beyond the limit, and takes others when
// there is room again. Those that don't say what they want take no place.
func TestTooManyConnections(t *testing.T) {
	l := newLab(t, func(o *iscsi.Options, _ *iscsi.Target) { o.MaxConnections = 2 })
	r := dial(t, l.addr)
	r.login()
	idle := dial(t, l.addr)
	idle.tryLogin(0, -1, names()...)
	x := dial(t, l.addr)
	if p := x.tryLogin(1, 3, names()...); p.u16(36) != 0x0302 {
		t.Errorf("got %v, want status 0302", p)
	}
	x.closed()
	for range 40 {
		x = dial(t, l.addr)
	}
	x.closed() // there are 16 to be told so
	r.alive()
	idle.nc.Close()
	for deadline := time.Now().Add(rawTimeout); ; time.Sleep(10 * time.Millisecond) {
		x := dial(t, l.addr)
		x.isid[5]++
		if x.enter() == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("there is no room again")
		}
	}
}

// TestDeaf sends reads and doesn't take the answers: the connection is dropped
// after the time-out, and others don't notice.
func TestDeaf(t *testing.T) {
	t.Parallel()
	l := newLab(t, func(o *iscsi.Options, _ *iscsi.Target) { o.WriteTimeout = time.Second })
	deaf := dial(t, l.addr)
	deaf.nc.(*net.TCPConn).SetReadBuffer(4096)
	deaf.login()
	for range 64 {
		deaf.send(deaf.command(0xc0, 4<<20, read10(0, 8192)...), nil)
	}
	other := dial(t, l.addr)
	other.isid[5]++
	other.login()
	for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		other.read(0, 64)
	}
	// What was in the sockets' buffers may still come, then it ends.
	deaf.nc.SetReadDeadline(time.Now().Add(rawTimeout))
	n, err := io.Copy(io.Discard, deaf.nc)
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Errorf("the connection stays open, after %d bytes", n)
	}
	other.alive()
}

// pipes is a listener whose connections hold nothing: who writes waits for who reads.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if nc, ok := <-p; ok {
		return nc, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// TestDeafToAborts resets a unit for which a session has tasks that takes no answers, so
// that it can't be told of their end. Who resets isn't held up by that.
func TestDeafToAborts(t *testing.T) {
	l := newLab(t, func(o *iscsi.Options, _ *iscsi.Target) { o.WriteTimeout = time.Hour })
	ln := make(pipes)
	go l.srv.Serve(ln)
	t.Cleanup(func() { close(ln) })
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close() })
	ln <- far
	deaf := &raw{t: t, nc: near, r: bufio.NewReader(near), cmdSN: 100, isid: [6]byte{0x80, 6, 6}}
	deaf.login("TaskReporting=FastAbort", "ImmediateData=No")
	for range 2 {
		deaf.send(deaf.command(0xa0, 512, write10(0, 1)...), nil)
		deaf.recv(0x31)
	}
	r := dial(t, l.addr)
	r.login()
	r.function(5, 0, 0xffffffff, 0)
	r.functionResponse(0)
	r.attend()
	r.read(0, 1)
	for range 2 {
		if p := deaf.recv(0x21); p.bhs[3] != 0x40 {
			t.Errorf("got %v, want TASK ABORTED", p)
		}
	}
	if p := deaf.recv(0x32); p.bhs[36] != 5 {
		t.Errorf("got %v, want the event that tasks are ended", p)
	}
}

// TestPing is asked for signs of life, and dropped when it gives none.
func TestPing(t *testing.T) {
	t.Parallel()
	l := newLab(t, func(o *iscsi.Options, _ *iscsi.Target) { o.PingInterval = 2 * time.Second })
	r := dial(t, l.addr)
	r.login()
	for range 2 {
		p := r.recv(0x20)
		if p.u32(16) != 0xffffffff || p.u32(20) == 0xffffffff {
			t.Fatalf("got %v, want a NOP-In that asks for an answer", p)
		}
		r.send(hdr(0x40, 0x80).put32(16, 0xffffffff).put32(20, p.u32(20)).put32(24, r.cmdSN).put32(28, r.expStatSN), nil)
	}
	r.recv(0x20)
	r.closed()
}

// TestRandomDisconnects ends connections amid writes and reads, by many
// initiators at a time, and sees that nothing is left of them.
func TestRandomDisconnects(t *testing.T) {
	l := attacked(t, nil)
	// A session each, what is left of the one before, and their commands' goroutines.
	b := within(8*2*64+10, 8*2*(176<<10+64*(64<<10)))
	l.meanwhile(t, func() {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(1, uint64(i)))
				for range 10 {
					r := dial(t, l.addr)
					r.isid[5] = byte(i)
					r.send(r.loginHeader(1, 3), text(append(names(), "InitialR2T=No", "ImmediateData=Yes")...))
					if p, err := r.tryRecv(rawTimeout); err != nil || p.u16(36) != 0 {
						t.Errorf("login: %v %v", p, err)
						return
					}
					var b []byte
					for range rnd.IntN(40) {
						lun := byte(rnd.IntN(2))
						switch rnd.IntN(3) {
						case 0:
							b = append(b, r.command(0xc0, 65536, read10(rnd.Uint32N(1000), 128)...).put(8, 0, lun)[:]...)
						case 1:
							h := r.command(0xa0, 1<<20, write10(rnd.Uint32N(1000), 2048)...).put(8, 0, lun)
							h[6] = 2
							b = append(b, h[:]...)
							b = append(b, make([]byte, 512)...)
						case 2:
							h := r.command(0x20, 4096, write10(rnd.Uint32N(1000), 8)...).put(8, 0, lun)
							b = append(b, h[:]...)
							o := r.dataOut(true, 0x1000+r.itt, 0xffffffff, 0, 0)
							o[6] = 0x10
							b = append(b, o[:]...)
							b = append(b, make([]byte, 4096)...)
						}
					}
					r.nc.SetDeadline(time.Now().Add(20 * time.Millisecond))
					r.nc.Write(b[:rnd.IntN(len(b)+1)])
					if rnd.IntN(2) == 0 {
						io.ReadAtLeast(r.nc, make([]byte, 1000), 1+rnd.IntN(1000))
					}
					if rnd.IntN(2) == 0 {
						r.nc.(*net.TCPConn).SetLinger(0)
					}
					r.nc.Close()
				}
			})
		}
		wg.Wait()
		b.check(t)
	})
	b.gone(t, l)
}

// rest waits until no command is in flight.
func (l *lab) rest(t testing.TB) {
	t.Helper()
	for deadline := time.Now().Add(rawTimeout); ; time.Sleep(time.Millisecond) {
		n := 0
		for _, u := range l.tgt.Device.Units() {
			n += u.InFlight()
		}
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d commands are in flight for good", n)
		}
	}
}

// TestAllocations counts the allocations of a read and of a write of a memory
// LUN: none.
func TestAllocations(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login("ImmediateData=Yes")
	r.nc.SetDeadline(time.Time{})
	in := make([]byte, 48+4096)
	run := func(name string, pdu []byte, answer int) {
		t.Helper()
		n := testing.AllocsPerRun(500, func() {
			binary.BigEndian.PutUint32(pdu[24:], r.next())
			if _, err := r.nc.Write(pdu); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(r.nc, in[:answer]); err != nil {
				t.Fatal(err)
			}
		})
		if in[3] != 0 {
			t.Errorf("%s: status %02x", name, in[3])
		}
		// The race detector's own are counted too.
		if n >= 1 && !raceEnabled {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
	h := r.command(0xa0, 4096, write10(0, 8)...)
	h[6] = 0x10
	r.cmdSN--
	run("WRITE(10)", append(h[:], make([]byte, 4096)...), 48)
	h = r.command(0xc0, 4096, read10(0, 8)...)
	r.cmdSN--
	run("READ(10)", h[:], 48+4096)
}

// FuzzSession sends any bytes, cut anywhere, in a login (level 0) or in a session
// with ErrorRecoveryLevel level-1. A well-behaved initiator is served after it.
func FuzzSession(f *testing.F) {
	l := newLab(f, nil)
	seed := &raw{t: f, cmdSN: 100, isid: [6]byte{1}}
	f.Add(byte(1), seed.command(0xc0, 4096, read10(0, 8)...)[:])
	w := seed.command(0x20, 4096, write10(0, 8)...)
	o := seed.dataOut(true, 0x1000+seed.itt, 0xffffffff, 0, 0)
	o[6] = 0x10
	f.Add(byte(1), append(append(w[:], o[:]...), make([]byte, 4096)...))
	f.Add(byte(1), append(hdr(0x42, 0x85).put32(24, 100)[:], hdr(0x46, 0x80).put32(16, 3)[:]...))
	f.Add(byte(1), hdr(0x00, 0x80).put32(16, 3).put32(24, 100)[:])
	for _, n := range []int{10, 100} {
		h := hdr(0x44, 0x80).put32(16, 3).put32(20, 0xffffffff)
		h[7] = byte(n)
		f.Add(byte(1), append(h[:], append(text("SendTargets=All"), make([]byte, n)...)[:n+(-n&3)]...))
	}
	login := seed.loginHeader(0, 1)
	data := text(append(names(), "AuthMethod=None")...)
	login[7] = byte(len(data))
	f.Add(byte(0), append(login[:], append(data, make([]byte, -len(data)&3)...)...))
	snack := hdr(0x10, 0x80).put32(16, 0x1001)
	reassign := hdr(0x42, 0x88).put32(16, 5).put32(20, 0x1001).put32(24, 101)
	f.Add(byte(2), append(append(seed.command(0xc0, 4096, read10(0, 8)...).put32(24, 100)[:], snack[:]...), reassign[:]...))
	f.Fuzz(func(t *testing.T, level byte, b []byte) {
		r := dial(t, l.addr)
		r.isid[0] = 0x40
		if level > 0 {
			r.send(r.loginHeader(1, 3), text(append(names(), "InitialR2T=No", fmt.Sprint("ErrorRecoveryLevel=", (level-1)%3))...))
			if p, err := r.tryRecv(rawTimeout); err != nil || p.u16(36) != 0 {
				t.Fatalf("login: %v %v", p, err)
			}
		}
		r.nc.SetWriteDeadline(time.Now().Add(rawTimeout))
		go func() {
			r.nc.Write(b)
			r.nc.(*net.TCPConn).CloseWrite()
		}()
		r.nc.SetReadDeadline(time.Now().Add(rawTimeout))
		if _, err := io.Copy(io.Discard, r.nc); err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				t.Fatal("the connection stays open at its end")
			}
		}
		// The same initiator again ends a session that waits to be recovered.
		good := dial(t, l.addr)
		good.isid[0] = 0x40
		good.login()
		good.alive()
		l.rest(t)
	})
}

// TestMemoryLimit begins more writes than there is memory for their data: those
// beyond get BUSY, the others are done, and then there is room again.
func TestMemoryLimit(t *testing.T) {
	const most = 20 << 20 // of one session
	l := newLab(t, func(o *iscsi.Options, _ *iscsi.Target) { o.MaxBuffer, o.MaxConnections = 4*most, 1<<20 })
	r := dial(t, l.addr)
	r.login("ImmediateData=No", "MaxBurstLength=1048576")
	for range 2 {
		const n = 40
		for range n {
			r.send(r.command(0xa0, 1<<20, write10(0, 2048)...).put(8, 0, unlimited), nil)
		}
		var asked []packet
		busy := 0
		for len(asked)+busy < n {
			p, err := r.tryRecv(rawTimeout)
			switch {
			case err != nil:
				t.Fatal(err)
			case p.op() == 0x31:
				asked = append(asked, p)
			case p.op() == 0x21 && p.bhs[3] == 0x08:
				busy++
			default:
				t.Fatalf("got %v", p)
			}
		}
		if len(asked) < 16 || len(asked) > most>>20 {
			t.Errorf("%d writes of 1 MiB are under way in %d MiB", len(asked), most>>20)
		}
		if b := l.srv.Status().BufferBytes; b > most {
			t.Errorf("%d bytes of buffers", b)
		}
		for _, q := range asked {
			for off, sn := uint32(0), uint32(0); off < 1<<20; off, sn = off+(1<<18), sn+1 {
				r.send(r.dataOut(off == 3<<18, q.u32(16), q.u32(20), sn, off), make([]byte, 1<<18))
			}
			r.good()
		}
	}
	r.alive()
}

// TestHeldData sends NOP-Outs before their turn, with more data than there is
// memory for. Those beyond are rejected when their turn comes.
func TestHeldData(t *testing.T) {
	const limit, n, size = 20 << 20, 100, 256 << 10 // limit is of one session
	l := newLab(t, func(o *iscsi.Options, _ *iscsi.Target) { o.MaxBuffer, o.MaxConnections = 4*limit, 1<<20 })
	r := dial(t, l.addr)
	r.login("MaxRecvDataSegmentLength=262144")
	first := r.command(0x80, 0, 0)
	data := random(size, 3)
	for range n {
		r.send(hdr(0x00, 0x80).put32(16, r.tag()).put32(20, 0xffffffff).put32(24, r.next()).put32(28, r.expStatSN), data)
	}
	r.send(hdr(0x40, 0x80).put32(16, 0x77).put32(20, 0xffffffff).put32(24, r.cmdSN).put32(28, r.expStatSN), nil)
	r.recv(0x20)
	if b := l.srv.Status().BufferBytes; b < limit/2 || b > limit {
		t.Errorf("%d bytes of buffers hold %d bytes of data, the limit is %d", b, n*size, limit)
	}
	r.send(first, nil)
	r.good()
	echoed, rejected := 0, 0
	for echoed+rejected < n {
		p, err := r.tryRecv(rawTimeout)
		switch {
		case err != nil:
			t.Fatal(err)
		case p.op() == 0x20 && bytes.Equal(p.data, data):
			echoed++
		case p.op() == 0x3f && p.bhs[2] == 0x0a:
			rejected++
		default:
			t.Fatalf("got %.100v", p)
		}
	}
	if echoed < 40 || rejected < 20 {
		t.Errorf("%d were answered and %d rejected", echoed, rejected)
	}
	r.alive()
}
