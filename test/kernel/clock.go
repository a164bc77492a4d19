package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is the virtual time of a guest that is User-Mode Linux, and of what the
// host does for it. While the guest has something to do, or the host has, no time
// passes; when both wait, it is at once the time that the first of them waits for.
// A guest runs in its own time only: a Clock is for one boot.
//
// It is the other side of UML's time-travel=ext (include/uapi/linux/um_timetravel.h),
// and safe for concurrent use. Once it is closed, nobody waits any more.
type Clock struct {
	mu       sync.Mutex
	changed  *sync.Cond
	listener *net.UnixListener
	conn     *net.UnixConn
	closed   bool
	served   sync.WaitGroup

	// settled tells whether the host has seen to all that the guest has said.
	settled func() bool

	now     time.Duration // of the guest, as far as it has told
	request time.Duration // when the guest wants to go on
	waiting bool          // the guest waits for that
	told    bool          // since it waits, now has become a time that it has not passed
	working int           // that many are at work for the guest
	asleep  []*sleeper    // in the order in which they came

	// bound is how far the guest may run by itself. Of the messages that say so,
	// sent were sent and acked were acknowledged.
	bound       time.Duration
	sent, acked uint32
}

// sleeper waits for a time, or for a channel to be closed.
type sleeper struct {
	at   time.Duration // forever: none
	a, b <-chan struct{}
	over chan struct{} // closed when it is the time
}

// forever is later than all times. UML panics if it is to sleep so long.
const forever = time.Duration(math.MaxInt64)

// freeRun is how long the guest may run without asking. Each time that it looks at
// the clock takes it 256 ns, so that it would ask very often; and the host sees to
// what it says when it asks.
const freeRun = time.Millisecond

// NewClock makes a clock at 0, the guest's start.
func NewClock() *Clock {
	c := &Clock{request: forever, settled: func() bool { return true }}
	c.changed = sync.NewCond(&c.mu)
	return c
}

// epoch is the time of day at the guest's start.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Now implements [lun.Clock].
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return epoch.Add(c.now)
}

// Begin says that somebody works for the guest, until End.
func (c *Clock) Begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.working++
}

// End ends Begin.
func (c *Clock) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.working--
	c.changed.Broadcast()
}

// Wait implements [lun.Clock]. Whoever calls it has called Begin.
func (c *Clock) Wait(d time.Duration, a, b <-chan struct{}) bool {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return true
	}
	c.presentLocked()
	s := &sleeper{at: forever, a: a, b: b, over: make(chan struct{})}
	if d >= 0 && d < forever-c.now {
		s.at = c.now + d
	}
	c.asleep = append(c.asleep, s)
	c.working--
	c.changed.Broadcast()
	c.mu.Unlock()
	select {
	case <-s.over:
		return true
	case <-a:
	case <-b:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.asleep, s); i >= 0 {
		c.asleep = slices.Delete(c.asleep, i, i+1)
		c.working++
	}
	return false
}

// Settle returns when nobody works for the guest, which has asked for something and
// waits for the answer, and it knows until when it may run by itself.
func (c *Clock) Settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed && !c.quietLocked() {
		c.changed.Wait()
	}
	if c.closed || c.conn == nil {
		return
	}
	if next := c.nextLocked(); next != nil && next.at < c.bound {
		c.boundLocked(next.at)
	}
	for !c.closed && c.acked != c.sent {
		c.changed.Wait()
	}
}

func (s *sleeper) woken() bool {
	select {
	case <-s.a:
	case <-s.b:
	default:
		return false
	}
	return true
}

// quietLocked tells whether all wait.
func (c *Clock) quietLocked() bool {
	return c.working == 0 && !slices.ContainsFunc(c.asleep, (*sleeper).woken)
}

// nextLocked is who wakes next, nil if nobody does by time.
func (c *Clock) nextLocked() (next *sleeper) {
	for _, s := range c.asleep {
		if s.at < forever && (next == nil || s.at < next.at) {
			next = s
		}
	}
	return next
}

// listen waits for the guest at a socket.
func (c *Clock) listen(path string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("kernel: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listener != nil || c.closed {
		l.Close()
		return errors.New("kernel: a clock is for one boot")
	}
	c.listener = l
	c.served.Go(func() {
		conn, err := l.AcceptUnix()
		l.Close()
		if err == nil {
			c.serve(conn)
		}
		c.stop()
	})
	c.served.Go(c.drive)
	return nil
}

// close ends the guest's time and all waiting.
func (c *Clock) close() {
	c.stop()
	c.served.Wait()
}

func (c *Clock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	if c.listener != nil {
		c.listener.Close()
	}
	if c.conn != nil {
		c.conn.Close()
	}
	for _, s := range c.asleep {
		c.wakeLocked(s)
	}
	c.asleep = nil
	c.changed.Broadcast()
}

func (c *Clock) wakeLocked(s *sleeper) {
	c.working++
	close(s.over)
}

// poke has the clock look whether all wait now.
func (c *Clock) poke() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed.Broadcast()
}

// untilWaits returns when the guest waits. One that doesn't for long may be held up
// by us: then it isn't reproducible what it does.
func (c *Clock) untilWaits() {
	c.mu.Lock()
	defer c.mu.Unlock()
	late := false
	t := time.AfterFunc(10*time.Second, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		late = true
		c.changed.Broadcast()
	})
	defer t.Stop()
	for !c.closed && !c.waiting && !late {
		c.changed.Wait()
	}
}

// drive lets time pass.
func (c *Clock) drive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed {
		if !c.waiting || !c.quietLocked() || !c.settled() || !c.passLocked() {
			c.changed.Wait()
		}
	}
}

// passLocked goes to the time of who is next, the guest or one that works for it. It
// returns false if nobody ever is.
func (c *Clock) passLocked() bool {
	next := c.nextLocked()
	if next != nil && next.at <= c.request {
		c.now, c.told = max(c.now, next.at), true
		c.asleep = slices.DeleteFunc(c.asleep, func(s *sleeper) bool { return s == next })
		c.wakeLocked(next)
		return true
	}
	if c.request == forever {
		return false
	}
	c.now, c.waiting = max(c.now, c.request), false
	c.request = forever
	bound := c.now + freeRun
	if next != nil {
		bound = min(bound, next.at)
	}
	c.boundLocked(bound)
	c.sendLocked(timeMessage{op: timeRun, time: c.now})
	return true
}

// boundLocked tells the guest how far it may run by itself.
func (c *Clock) boundLocked(to time.Duration) {
	c.bound = to
	c.sent++
	c.sendLocked(timeMessage{op: timeFreeUntil, seq: c.sent, time: to})
}

func (c *Clock) sendLocked(m timeMessage) {
	if _, err := c.conn.Write(m.encode()); err != nil {
		c.conn.Close() // serve ends with that
	}
}

// serve answers the guest until it is gone.
func (c *Clock) serve(conn *net.UnixConn) {
	c.mu.Lock()
	c.conn = conn
	c.mu.Unlock()
	var b [timeMessageSize]byte
	for {
		if _, err := io.ReadFull(conn, b[:]); err != nil {
			return
		}
		var m timeMessage
		if err := m.decode(b[:]); err != nil || c.handle(m) != nil {
			return
		}
	}
}

// handle does what a message says, and acknowledges it.
func (c *Clock) handle(m timeMessage) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ack := timeMessage{op: timeAck, seq: m.seq}
	switch m.op {
	case timeAck:
		if m.seq == c.sent {
			c.acked = m.seq
			c.changed.Broadcast()
		}
		return nil
	case timeStart:
		return c.startLocked(ack)
	case timeRequest:
		c.request = m.time
	case timeWait:
		c.waiting, c.told = true, false
	case timeGet:
		c.presentLocked() // something has come for the guest
		ack.time = c.now
	case timeUpdate:
		c.now = max(c.now, m.time)
	case timeGetTOD:
		ack.time = time.Duration(epoch.UnixNano()) + c.now
	}
	c.sendLocked(ack)
	c.changed.Broadcast()
	return nil
}

// presentLocked makes now a time that the guest has not passed. One that waits
// doesn't say what its own is, but that it isn't past its request.
func (c *Clock) presentLocked() {
	if c.waiting && !c.told && c.request < forever {
		c.now, c.told = max(c.now, c.request), true
	}
}

// startLocked acknowledges the guest's first message. It expects two file
// descriptors with that, of shared memory and a log, and does without if they are
// of something else.
func (c *Clock) startLocked(ack timeMessage) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	fd := int(null.Fd())
	_, _, err = c.conn.WriteMsgUnix(ack.encode(), unix.UnixRights(fd, fd), nil)
	return err
}

// Operations of time messages, enum um_timetravel_ops.
const (
	timeAck       = 0
	timeStart     = 1
	timeRequest   = 2
	timeWait      = 3
	timeGet       = 4
	timeUpdate    = 5
	timeRun       = 6
	timeFreeUntil = 7
	timeGetTOD    = 8
)

// timeMessage is struct um_timetravel_msg.
type timeMessage struct {
	op, seq uint32
	time    time.Duration // 0 to forever
}

const timeMessageSize = 16

func (m timeMessage) encode() []byte {
	b := binary.NativeEndian.AppendUint32(nil, m.op)
	b = binary.NativeEndian.AppendUint32(b, m.seq)
	return binary.NativeEndian.AppendUint64(b, uint64(m.time))
}

func (m *timeMessage) decode(b []byte) error {
	if len(b) < timeMessageSize {
		return fmt.Errorf("kernel: a time message of %d bytes", len(b))
	}
	m.op, m.seq = binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint32(b[4:])
	// Where it has none, it is all ones.
	m.time = time.Duration(min(binary.NativeEndian.Uint64(b[8:]), uint64(forever)))
	return nil
}
