package kernel

import (
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// timedGuest is the guest's side of a clock.
type timedGuest struct {
	testing.TB
	conn *net.UnixConn
}

func startClock(t testing.TB) (*Clock, *timedGuest) {
	t.Helper()
	c := NewClock()
	path := filepath.Join(t.TempDir(), "time")
	if err := c.listen(path); err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		c.close()
	})
	return c, &timedGuest{t, conn}
}

func (g *timedGuest) send(op uint32, at time.Duration) {
	g.Helper()
	if _, err := g.conn.Write(timeMessage{op: op, seq: 7, time: at}.encode()); err != nil {
		g.Fatal(err)
	}
}

// expect reads a message, and acknowledges one that isn't an acknowledgement.
func (g *timedGuest) expect(op uint32, at time.Duration) {
	g.Helper()
	var b [timeMessageSize]byte
	var m timeMessage
	g.conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(g.conn, b[:]); err != nil {
		g.Fatalf("no message %d: %v", op, err)
	}
	if m.decode(b[:]); m.op != op || m.time != at {
		g.Fatalf("message %d, time %v; want %d, %v", m.op, m.time, op, at)
	}
	if op != timeAck {
		if _, err := g.conn.Write(timeMessage{op: timeAck, seq: m.seq}.encode()); err != nil {
			g.Fatal(err)
		}
	}
}

// waits asks for a time and waits for it.
func (g *timedGuest) waits(at time.Duration) {
	g.Helper()
	g.send(timeRequest, at)
	g.expect(timeAck, 0)
	g.send(timeWait, -1)
	g.expect(timeAck, 0)
}

// runs expects to go on.
func (g *timedGuest) runs(at, bound time.Duration) {
	g.Helper()
	g.expect(timeFreeUntil, bound)
	g.expect(timeRun, at)
}

func TestClock(t *testing.T) {
	c, g := startClock(t)
	g.send(timeStart, 1)
	oob := make([]byte, unix.CmsgSpace(8))
	var b [timeMessageSize]byte
	n, on, _, _, err := g.conn.ReadMsgUnix(b[:], oob)
	if err != nil || n != len(b) {
		t.Fatalf("%d bytes, %v", n, err)
	}
	list, err := unix.ParseSocketControlMessage(oob[:on])
	if err != nil || len(list) != 1 {
		t.Fatalf("%d control messages, %v", len(list), err)
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil || len(fds) != 2 {
		t.Fatalf("%d file descriptors, %v; the kernel closes two", len(fds), err)
	}
	for _, fd := range fds {
		unix.Close(fd)
	}

	g.waits(5 * time.Second)
	g.runs(5*time.Second, 5*time.Second+freeRun)

	// Somebody who works for the guest keeps time from passing. When he waits, time
	// goes to whoever is first.
	g.send(timeUpdate, 6*time.Second)
	g.expect(timeAck, 0)
	over := make(chan bool, 1)
	c.Begin()
	go func() { over <- c.Wait(3*time.Second, nil, nil) }()
	g.waits(20 * time.Second)
	if !<-over {
		t.Error("the time wasn't over")
	}
	if at := c.Now(); !at.Equal(epoch.Add(9 * time.Second)) {
		t.Errorf("it is %v, want 9 s", at.Sub(epoch))
	}
	// What comes to the guest now is at that time, and may be for the same.
	g.send(timeGet, 0)
	g.expect(timeAck, 9*time.Second)
	g.send(timeRequest, 9*time.Second)
	g.expect(timeAck, 0)
	c.End()
	g.runs(9*time.Second, 9*time.Second+freeRun)

	// Who waits for something else isn't waited for by time, but until it is at
	// work again when that has come.
	until := make(chan struct{})
	c.Begin()
	go func() { over <- c.Wait(-1, until, nil) }()
	g.waits(30 * time.Second)
	g.runs(30*time.Second, 30*time.Second+freeRun)
	close(until)
	if <-over {
		t.Error("a wait without an end was over")
	}
	g.waits(40 * time.Second)
	// What it does meanwhile is at a time that the guest hasn't passed.
	g.send(timeGet, 0)
	g.expect(timeAck, 40*time.Second)
	c.End()
	g.runs(40*time.Second, 40*time.Second+freeRun)

	// A guest that asked for something is told how far it may run then.
	c.Begin()
	go func() { over <- c.Wait(freeRun/2, nil, nil) }()
	settled := make(chan struct{})
	go func() {
		c.Settle()
		close(settled)
	}()
	g.expect(timeFreeUntil, 40*time.Second+freeRun/2)
	<-settled
	go func() { over <- c.Wait(-1, nil, nil) }()
	c.Begin()
	c.close()
	<-over
	<-over
	c.Settle()
	if !c.Wait(time.Hour, nil, nil) {
		t.Error("a clock that is closed has somebody wait")
	}
}

// FuzzClock has a guest say anything. The clock ends with it.
func FuzzClock(f *testing.F) {
	f.Add(append(timeMessage{op: timeRequest, time: 5}.encode(), timeMessage{op: timeWait}.encode()...))
	f.Add(append(timeMessage{op: timeUpdate, time: -1}.encode(), timeMessage{op: timeGet}.encode()...))
	f.Add([]byte{1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, g := startClock(t)
		c.Begin()
		over := make(chan struct{})
		go func() {
			c.Wait(time.Second, nil, nil)
			close(over)
		}()
		go io.Copy(io.Discard, g.conn)
		g.conn.Write(b)
		g.conn.CloseWrite()
		<-over
		c.close()
	})
}
