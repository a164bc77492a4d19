package vhostuser_test

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lunlab/lun"
	"lunlab/target"
	"lunlab/target/vhostuser"
)

const (
	replyAck    = 1 << 3
	backendReq  = 1 << 5
	inBandCalls = 1 << 14
)

// stillClock counts who is at work.
type stillClock struct{ sync.WaitGroup }

func (c *stillClock) Begin()  { c.Add(1) }
func (c *stillClock) End()    { c.Done() }
func (c *stillClock) Settle() { c.Wait() }

// channel gives the back end a channel and returns the front end's side.
func (f *frontEnd) channel(kind int) net.Conn {
	f.t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	ours := os.NewFile(uintptr(fds[0]), "channel")
	defer ours.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	ok := f.acked(21, nil, fds[1])
	unix.Close(fds[1])
	if ok != (kind == unix.SOCK_STREAM) {
		f.t.Errorf("a channel of kind %d was taken: %v", kind, ok)
	}
	return c
}

// inBand sets up virtqueue index without descriptors for kicks and calls.
func (f *frontEnd) inBand(index int) *queue {
	q := &queue{f: f, index: index, num: 16, off: uint32(index) * queueRange, kick: -1, call: -1, errs: -1}
	f.must(8, state(index, q.num))
	f.must(10, state(index, uint32(q.avail)))
	f.must(9, q.addr())
	f.must(18, state(index, 1))
	return q
}

// called reads a call from the channel and returns what comes back for it.
func called(t *testing.T, c net.Conn, answer []byte) {
	t.Helper()
	var b [20]byte
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(c, b[:]); err != nil {
		t.Errorf("no call: %v", err)
		return
	}
	if want := []byte{4, 0, 0, 0, 9, 0, 0, 0, 8, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}; !bytes.Equal(b[:], want) {
		t.Errorf("call % x, want % x", b, want)
	}
	c.Write(answer)
}

var taken = []byte{4, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

// TestInBand has a driver that kicks by messages find all done that it made
// available, and itself told, before its kick is acknowledged.
func TestInBand(t *testing.T) {
	path, _ := serve(t, vhostuser.Options{Target: targetOf(t, target.NewMeter(memoryDisk(t, 1<<20, lun.DiskOptions{}))), Clock: new(stillClock)})
	f := dial(t, path, version1|protocol, false)
	f.must(16, u64(replyAck|backendReq|inBandCalls))
	if f.acked(21, nil, f.memFD) {
		t.Error("a file was taken for a channel")
	}
	f.channel(unix.SOCK_DGRAM)
	f.channel(unix.SOCK_STREAM)
	c := f.channel(unix.SOCK_STREAM) // the last one holds
	q := f.inBand(2)
	for i := range 3 {
		answered := make(chan struct{})
		go func() {
			called(t, c, taken)
			close(answered)
		}()
		q.submit(0, &command{cdb: testUnitReady})
		if !f.acked(35, state(2, 0)) {
			t.Fatal("the kick was refused")
		}
		if _, _, ok := q.poll(); !ok {
			t.Fatal("the kick was acknowledged before the command was done")
		}
		select {
		case <-answered:
		case <-time.After(patience):
			t.Fatal("the kick was acknowledged before the call")
		}
		// Stopped, it begins anew with the next kick.
		if b := f.ask(11, state(2, 0)); le.Uint32(b[4:]) != uint32(i+1) {
			t.Errorf("stopped at %d, want %d", le.Uint32(b[4:]), i+1)
		}
		f.must(18, state(2, 1))
	}
	if f.acked(35, state(9, 0)) {
		t.Error("a kick of no virtqueue was taken")
	}
	f.must(16, u64(replyAck))
	if f.acked(35, state(2, 0)) {
		t.Error("a kick as a message was taken, which wasn't agreed on")
	}
}

// FuzzBackend answers a call with anything. Whatever it is, the device goes on.
func FuzzBackend(f *testing.F) {
	f.Add(taken)
	f.Add([]byte{4, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{4, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{4, 0})
	path, _ := serve(f, vhostuser.Options{Target: targetOf(f, memoryDisk(f, 1<<20, lun.DiskOptions{})), Clock: new(stillClock)})
	f.Fuzz(func(t *testing.T, answer []byte) {
		g := dial(t, path, version1|protocol, false)
		g.must(16, u64(replyAck|backendReq|inBandCalls))
		c := g.channel(unix.SOCK_STREAM)
		q := g.inBand(2)
		go func() {
			c.Write(answer)
			c.(*net.UnixConn).CloseWrite()
		}()
		for range 3 {
			q.submit(0, &command{cdb: testUnitReady})
			if !g.acked(35, state(2, 0)) {
				t.Fatal("the kick was refused")
			}
			if _, _, ok := q.poll(); !ok {
				t.Fatal("nothing was completed")
			}
		}
		g.conn.Close()
	})
}
