package vhostuser

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Messages that set up memory and virtqueues.

func (s *session) ring(index uint32) (*ring, error) {
	if index >= uint32(len(s.rings)) {
		return nil, fmt.Errorf("virtqueue %d: there are %d, with %d for requests (num_queues)", index, len(s.rings), s.dev.opts.Queues)
	}
	return s.rings[index], nil
}

// setMemTable replaces all memory.
func (s *session) setMemTable(m *message) error {
	list, err := decodeMemTable(m.payload)
	if err != nil {
		return err
	}
	if len(m.fds) != len(list) {
		return fmt.Errorf("%w: %d file descriptors for %d regions of memory", errMessage, len(m.fds), len(list))
	}
	var regions []*region
	for i, d := range list {
		r, err := mapRegion(d, m.fds[i])
		if err != nil {
			return errors.Join(err, (&memory{regions: regions}).drop())
		}
		regions = append(regions, r)
	}
	mem, err := newMemory(regions)
	if err != nil {
		return err
	}
	return s.swapMemory(mem)
}

// changeMemory adds a region or removes one.
func (s *session) changeMemory(m *message) error {
	d, err := decodeMemRegion(m.payload)
	if err != nil {
		return err
	}
	old := s.memory
	if old == nil {
		if old, err = newMemory(nil); err != nil {
			return err
		}
	}
	var mem *memory
	if m.request == reqAddMemReg {
		fd, err := m.fd()
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		r, err := mapRegion(d, fd)
		if err != nil {
			return err
		}
		if mem, err = old.with(r); err != nil {
			return err
		}
	} else if mem, err = old.without(d); err != nil {
		return err
	}
	return s.swapMemory(mem)
}

// swapMemory has the virtqueues use other memory from now on. Requests that were
// taken keep what they had.
func (s *session) swapMemory(mem *memory) error {
	old := s.memory
	s.memory = mem
	var errs []error
	for _, r := range s.rings {
		err := r.change(func() error {
			r.mem = mem
			return r.locate()
		})
		if err != nil {
			r.fail(err)
			errs = append(errs, err)
		}
	}
	if old != nil {
		errs = append(errs, old.drop())
	}
	return errors.Join(errs...)
}

func (s *session) setVring(m *message) error {
	var v vringState
	if err := v.decode(m.payload); err != nil {
		return err
	}
	r, err := s.ring(v.index)
	if err != nil {
		return err
	}
	switch m.request {
	case reqSetVringNum:
		if most := uint32(s.dev.opts.QueueSize); v.num > most {
			return fmt.Errorf("virtqueue %d: a size of %d: it may be %d at the most (virtqueue_size)", v.index, v.num, most)
		}
		return r.change(func() error {
			r.size, r.addr = v.num, nil
			return r.locate()
		})
	case reqSetVringBase:
		return r.change(func() error {
			r.next = uint16(v.num)
			return nil
		})
	}
	return r.change(func() error {
		r.enabled = v.num != 0
		return nil
	})
}

func (s *session) setVringAddr(m *message) error {
	var a vringAddr
	if err := a.decode(m.payload); err != nil {
		return err
	}
	r, err := s.ring(a.index)
	if err != nil {
		return err
	}
	return r.change(func() error {
		r.addr = &a
		return r.locate()
	})
}

func (s *session) setVringFD(m *message) error {
	var f vringFD
	if err := f.decode(m.payload); err != nil {
		return err
	}
	r, err := s.ring(f.index)
	if err != nil {
		return err
	}
	fd := -1
	if !f.none {
		if fd, err = m.fd(); err != nil {
			return err
		}
		// Whoever is at the other end must not hold us up.
		if err := unix.SetNonblock(fd, true); err != nil {
			unix.Close(fd)
			return fmt.Errorf("virtqueue %d: %w", f.index, err)
		}
	}
	switch m.request {
	case reqSetVringCall:
		r.setFD(&r.call, fd)
		return nil
	case reqSetVringErr:
		r.setFD(&r.errs, fd)
		return nil
	}
	if fd < 0 && s.protocol&protocolInBand != 0 {
		r.halt() // until a message kicks it
		return nil
	}
	if fd < 0 {
		return fmt.Errorf("virtqueue %d has no kicks: polling is not supported", f.index)
	}
	kick := os.NewFile(uintptr(fd), "kick")
	if err := kick.SetReadDeadline(time.Time{}); err != nil {
		kick.Close()
		return fmt.Errorf("virtqueue %d: kicks can't be waited for: %w", f.index, err)
	}
	r.start(kick)
	return nil
}

// kickInBand handles a kick that is a message. When it returns, what was available
// is in the used ring, or it waits for something. The first kick starts a virtqueue
// that has no descriptor for them.
func (s *session) kickInBand(m *message) error {
	if s.protocol&protocolInBand == 0 {
		return fmt.Errorf("%w: a kick as a message, which wasn't agreed on", errMessage)
	}
	var v vringState
	if err := v.decode(m.payload); err != nil {
		return err
	}
	r, err := s.ring(v.index)
	if err != nil {
		return err
	}
	if r.kick == nil {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			return fmt.Errorf("virtqueue %d: %w", v.index, err)
		}
		r.start(os.NewFile(uintptr(fd), "kick"))
	}
	r.poll()
	s.dev.opts.Clock.Settle()
	return nil
}

// getVringBase stops a virtqueue and says where its successor has to go on.
func (s *session) getVringBase(m *message) ([]byte, error) {
	var v vringState
	if err := v.decode(m.payload); err != nil {
		return nil, err
	}
	r, err := s.ring(v.index)
	if err != nil {
		return nil, err
	}
	r.stop()
	r.change(func() error {
		v.num = uint32(r.next)
		return nil
	})
	return v.append(nil), nil
}

func (s *session) getInflight(m *message) (reply []byte, fd int, err error) {
	var want inflightInfo
	if err := want.decode(m.payload); err != nil {
		return nil, -1, err
	}
	i, fd, err := newInflight(want.queues, want.queueSize)
	if err != nil {
		return nil, -1, err
	}
	// Front ends differ in whether the structure has padding at its end.
	reply = i.append(nil)
	return append(reply, make([]byte, len(m.payload)-len(reply))...), fd, nil
}

func (s *session) setInflight(m *message) error {
	var i inflightInfo
	if err := i.decode(m.payload); err != nil {
		return err
	}
	fd, err := m.fd()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	f, err := openInflight(i, fd)
	if err != nil {
		return err
	}
	old := s.inflight
	s.inflight = f
	for n, r := range s.rings {
		r.mu.Lock()
		r.track = f.queue(n)
		r.mu.Unlock()
	}
	if old != nil {
		return old.close()
	}
	return nil
}
