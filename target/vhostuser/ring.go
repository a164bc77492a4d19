package vhostuser

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"lunlab/target"
	"lunlab/target/shared"
)

// drainTime is how long a virtqueue's requests may take to end when it is stopped;
// then they are aborted.
const drainTime = 5 * time.Second

// ring is a virtqueue. The session sets it up; a goroutine of its own takes
// requests when the driver kicks, and whoever executes one completes it.
type ring struct {
	s     *session
	index uint32

	// Functions, bound once, and what the first of them found.
	takeIt, signalIt func()
	takeErr          error // read and written under polling

	// polling is held to take requests. What follows is read under it, and
	// changed under it by the session, which sets pausing to get it soon.
	polling  sync.Mutex
	pausing  atomic.Bool
	size     uint32
	addr     *vringAddr
	next     uint16 // in the available ring
	enabled  bool
	running  bool
	features uint64
	mem      *memory
	again    []uint16 // heads of what was in flight when our predecessor was killed

	// split changes under both locks.
	split split

	// mu is held to complete requests, after polling.
	mu       sync.Mutex
	writable bool   // the used ring may be written
	used     uint16 // in the used ring
	signaled uint16 // the driver was told of what comes before
	call     int    // file descriptors, -1 for none
	errs     int
	busy     []bool // by head: taken, and not completed
	inFlight int
	idle     chan struct{} // closed when inFlight is 0, if somebody waits for it
	free     []*task
	track    *inflightQueue // nil: nobody wants to know what is in flight

	// settling is held for reading from when a task leaves its task set until its
	// answer is in the used ring.
	settling sync.RWMutex

	broken   atomic.Bool
	draining atomic.Bool // what is aborted from now on was so by a reset

	// The session's own.
	kick   *os.File
	ending atomic.Bool
	reader sync.WaitGroup
}

func newRing(s *session, index int) *ring {
	r := &ring{s: s, index: uint32(index), call: -1, errs: -1}
	r.takeIt, r.signalIt = func() { r.takeErr = r.takeAll() }, r.signal
	return r
}

// pause keeps requests from being taken until resume.
func (r *ring) pause() {
	r.pausing.Store(true)
	r.polling.Lock()
	r.pausing.Store(false)
}

// resume ends pause. It has the ring's goroutine look for requests.
func (r *ring) resume() {
	r.running = r.enabled && r.kick != nil && r.split.num > 0 && !r.broken.Load()
	r.wake()
	r.polling.Unlock()
}

func (r *ring) wake() {
	if r.kick != nil {
		r.kick.SetReadDeadline(time.Unix(1, 0))
	}
}

// change lets f change the ring.
func (r *ring) change(f func() error) error {
	r.pause()
	defer r.resume()
	return f()
}

// locate finds the ring in memory. It is called under polling.
func (r *ring) locate() (err error) {
	var q split
	if r.addr != nil && r.mem != nil {
		q, err = newSplit(r.mem, r.size, r.addr)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.split, r.writable = q, q.num > 0
	if err != nil || q.num == 0 {
		return err
	}
	if len(r.busy) != int(q.num) {
		r.busy = make([]bool, q.num)
	}
	return shared.GuardFault(func() {
		r.used = q.usedIndex()
		r.signaled = r.used
	})
}

// start has the ring serve the kicks of f, which it takes over.
func (r *ring) start(f *os.File) {
	r.halt()
	r.pause()
	r.kick = f
	r.broken.Store(false)
	r.ending.Store(false)
	r.draining.Store(false)
	if err := r.locate(); err != nil {
		r.fail(err)
	} else if err := shared.GuardFault(r.recover); err != nil {
		r.fail(err)
	}
	r.reader.Go(func() { r.loop(f) })
	r.resume()
}

// recover finds what a predecessor left in flight. It is called under polling.
func (r *ring) recover() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.track == nil || r.split.num == 0 || r.inFlight > 0 {
		return
	}
	r.again = r.track.recover(r.split.num, r.split.usedIndex())
	r.next = r.split.usedIndex() + uint16(len(r.again))
}

// halt ends the goroutine. Requests that were taken go on.
func (r *ring) halt() {
	if r.kick == nil {
		return
	}
	r.ending.Store(true)
	r.wake()
	r.reader.Wait()
	r.pause()
	r.kick.Close()
	r.kick = nil
	r.resume()
}

// stop halts the ring and returns when nothing of it is in flight any more.
func (r *ring) stop() {
	r.halt()
	r.mu.Lock()
	idle := r.idleLocked()
	r.mu.Unlock()
	late := time.NewTimer(drainTime)
	defer late.Stop()
	select {
	case <-idle:
	case <-late.C:
		r.draining.Store(true)
		a := r.s.nexus.AbortWhere(func(t *target.Task) bool {
			k, ok := t.Owner().(*task)
			return ok && k.ring == r
		})
		a.Wait()
		<-idle
	}
	r.silence()
}

// silence has nothing more written to the used ring.
func (r *ring) silence() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writable = false
}

// idleLocked returns a channel that is closed when nothing is in flight.
func (r *ring) idleLocked() <-chan struct{} {
	if r.idle == nil {
		r.idle = make(chan struct{})
		if r.inFlight == 0 {
			close(r.idle)
		}
	}
	idle := r.idle
	if r.inFlight == 0 {
		r.idle = nil
	}
	return idle
}

// loop is the ring's goroutine.
func (r *ring) loop(kick *os.File) {
	var count [8]byte
	for {
		r.poll()
		_, err := kick.Read(count[:])
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			// In this order, so that no wake is lost.
			kick.SetReadDeadline(time.Time{})
			if r.ending.Load() {
				return
			}
		default:
			if err == io.EOF {
				err = errors.New("the driver's end of it is closed")
			}
			r.fail(fmt.Errorf("wait for a kick: %w", err))
			return
		}
	}
}

// poll takes the requests that are there. It may be called by any goroutine.
func (r *ring) poll() {
	r.polling.Lock()
	defer r.polling.Unlock()
	r.takeErr = nil
	err := shared.GuardFault(r.takeIt)
	if err = cmp.Or(err, r.takeErr); err != nil {
		r.fail(err)
	}
}

func (r *ring) takeAll() error {
	for r.running && len(r.again) > 0 {
		head := r.again[0]
		r.again = r.again[1:]
		if err := r.take(head); err != nil {
			return err
		}
		if len(r.again) == 0 {
			r.signal()
		}
	}
	for r.running && !r.broken.Load() && !r.pausing.Load() {
		index := r.split.availIndex()
		n := index - r.next
		if uint32(n) > r.split.num {
			return fmt.Errorf("the available ring's index jumps by %d from %d", n, r.next)
		}
		if r.index == eventQueue {
			// Buffers stay until there is something to tell.
			done, err := r.s.events.deliver(r, n)
			if err != nil || done < n {
				return err
			}
			n = 0
		}
		if n == 0 {
			if r.features&featureEventIdx == 0 {
				return nil
			}
			if !r.split.setAvailEvent(index) {
				return errors.New("the available ring's event doesn't stay as it is set")
			}
			if r.split.availIndex() == index {
				return nil
			}
			continue
		}
		for r.next != index {
			head := r.split.availHead(r.next)
			r.next++
			if err := r.take(head); err != nil {
				return err
			}
		}
		r.signal()
	}
	return nil
}

// take starts the request at head.
func (r *ring) take(head uint16) error {
	t, err := r.book(head)
	if err != nil {
		return err
	}
	if err := t.guarded(t.startIt); err != nil {
		return err
	}
	return t.err
}

// book makes a task of the request at head.
func (r *ring) book(head uint16) (*task, error) {
	t, err := r.bookLocked(head)
	if err != nil {
		return nil, err
	}
	t.head, t.mem, t.features, t.over, t.err = head, r.mem, r.features, false, nil
	r.mem.hold()
	return t, nil
}

func (r *ring) bookLocked(head uint16) (*task, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if int(head) >= len(r.busy) {
		return nil, fmt.Errorf("the available ring names descriptor %d of %d", head, len(r.busy))
	}
	if r.busy[head] {
		return nil, fmt.Errorf("descriptor %d is available while it is in use", head)
	}
	r.busy[head] = true
	r.inFlight++
	r.track.begin(head)
	if n := len(r.free); n > 0 {
		t := r.free[n-1]
		r.free = r.free[:n-1]
		return t, nil
	}
	return newTask(r), nil
}

// complete gives the task's request back to the driver, with n bytes written, or
// forgets it. With again, the task may be used for another one from then on.
func (r *ring) complete(t *task, n uint32, answered, again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.over = true
	if int(t.head) < len(r.busy) {
		r.busy[t.head] = false
	}
	if r.inFlight--; r.inFlight == 0 && r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
	if answered && r.writable {
		r.track.ending(t.head)
		r.split.putUsed(r.used, t.head, n)
		r.used++
		r.track.ended(t.head, r.used)
	}
	if again {
		r.free = append(r.free, t)
	}
}

var one = []byte{1, 0, 0, 0, 0, 0, 0, 0}

// signal tells the driver of what was completed, if it wants to know: by the
// descriptor that it has for that, or by a message.
func (r *ring) signal() {
	if !r.due() {
		return
	}
	if err := r.s.backend.call(r.index, r.s.acked.Load()); err != nil {
		r.s.dev.log.Error("driver isn't told", "device", r.s.dev.opts.Name, "err", err)
	}
}

// due calls the driver by its descriptor, or tells that a message is due.
func (r *ring) due() (message bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.writable || r.used == r.signaled {
		return false
	}
	before := r.signaled
	r.signaled = r.used
	wanted := false
	if r.s.eventIndex.Load() {
		wanted = passes(r.split.usedEvent(), r.used, before)
	} else {
		wanted = !r.split.interruptsOff()
	}
	if wanted && r.call >= 0 {
		unix.Write(r.call, one) // full is as good
	}
	return wanted && r.call < 0
}

// fail reports that the ring is broken. It isn't served any more until it is set
// up anew.
func (r *ring) fail(err error) {
	if r.broken.Swap(true) {
		return
	}
	r.s.needsReset.Store(true)
	r.s.dev.log.Error("virtqueue is broken", "device", r.s.dev.opts.Name, "queue", r.index, "err", err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.errs >= 0 {
		unix.Write(r.errs, one)
	}
}

// setFD replaces call or errs.
func (r *ring) setFD(to *int, fd int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if *to >= 0 {
		unix.Close(*to)
	}
	*to = fd
}

// settle returns when all that has left its task set is in the used ring.
func (r *ring) settle() {
	r.settling.Lock()
	defer r.settling.Unlock()
}
