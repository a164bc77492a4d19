// Package vhostuser makes a target a virtio-scsi device of a virtual machine: it is
// the back end of the vhost-user protocol, which QEMU and others speak over a unix
// socket (vhost-user-scsi).
//
// Requests are taken from virtqueues in the guest's memory, and blocks move between
// that and a unit's store without a copy where the memory can't be taken away: its
// file is sealed against being made shorter, as QEMU's memory-backend-memfd is.
// Everything that comes from the front end or the guest may be wrong. A virtqueue
// that is ends as broken, which the front end is told by its error descriptor; other
// virtqueues and other devices go on.
package vhostuser

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"lunlab/target"
)

// Options describe a device.
type Options struct {
	// Target is what the device's one SCSI target is, with number 0.
	Target *target.Target

	// Name is for people and the log, and names the initiator to persistent
	// reservations.
	Name string

	// Queues is the most request queues, 1 to [MaxQueues], by default 1. The driver's
	// hardware queues are as many, or its CPUs if those are fewer.
	Queues int

	// QueueSize is the most descriptors of a virtqueue, a power of two from 4 to
	// 1024, by default 128. It is can_queue to the driver.
	QueueSize int

	// CmdPerLUN is the queue depth that the driver gives a logical unit at first, by
	// default 128. The target's own limit is what holds.
	CmdPerLUN int

	// Clock is told of what the device does, if the front end's time is not real and
	// passes only when nobody is at work. Notifications are messages then, if the
	// front end can have that: a kick is acknowledged when what it made available
	// has been executed, or waits. nil: time is real.
	Clock Clock

	Log *slog.Logger // nil: none
}

// Clock is a time that stands still while somebody is at work.
type Clock interface {
	Begin()  // one more is at work
	End()    // one less
	Settle() // returns when nobody is
}

const (
	defaultQueueSize = 128
	defaultCmdPerLUN = 128

	// MaxQueueSize is the most descriptors that a virtqueue may have.
	MaxQueueSize = 1024
)

func (o *Options) defaults() error {
	if o.Queues == 0 {
		o.Queues = 1
	}
	if o.QueueSize == 0 {
		o.QueueSize = defaultQueueSize
	}
	if o.CmdPerLUN == 0 {
		o.CmdPerLUN = defaultCmdPerLUN
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.Target == nil:
		return errors.New("vhostuser: a device without a target")
	case o.Queues < 1 || o.Queues > MaxQueues:
		return fmt.Errorf("vhostuser: %d queues: want 1 to %d", o.Queues, MaxQueues)
	case o.QueueSize < 4 || o.QueueSize > MaxQueueSize || o.QueueSize&(o.QueueSize-1) != 0:
		return fmt.Errorf("vhostuser: a queue size of %d: want a power of two from 4 to %d", o.QueueSize, MaxQueueSize)
	case o.CmdPerLUN < 1:
		return fmt.Errorf("vhostuser: cmd_per_lun %d: want 1 or more", o.CmdPerLUN)
	}
	return nil
}

// Device is a virtio-scsi device. It is safe for concurrent use.
type Device struct {
	opts   Options
	log    *slog.Logger
	copied atomic.Int64 // bytes of guests' data that are copied now

	mu       sync.Mutex
	closed   bool
	listener *net.UnixListener
	current  *session
	serving  sync.WaitGroup
}

// New makes a device.
func New(o Options) (*Device, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	return &Device{opts: o, log: o.Log}, nil
}

// Options returns the options with what was left out filled in.
func (d *Device) Options() Options { return d.opts }

// Listen listens on a unix socket at path. A socket that nobody listens on any more
// is replaced.
func Listen(path string) (*net.UnixListener, error) {
	addr := &net.UnixAddr{Name: path, Net: "unix"}
	ln, err := net.ListenUnix("unix", addr)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return ln, err
	}
	if c, derr := net.DialUnix("unix", nil, addr); !errors.Is(derr, syscall.ECONNREFUSED) {
		if derr == nil {
			c.Close()
		}
		return nil, err
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	return net.ListenUnix("unix", addr)
}

// ErrClosed is what Serve returns after Close.
var ErrClosed = errors.New("vhostuser: device closed")

// Serve serves the front ends that connect, one after the other, until Close. It
// closes the listener. It is called once.
func (d *Device) Serve(ln *net.UnixListener) error {
	defer ln.Close()
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return ErrClosed
	}
	d.listener = ln
	d.serving.Add(1)
	d.mu.Unlock()
	defer d.serving.Done()
	for {
		c, err := ln.AcceptUnix()
		if err != nil {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.closed {
				return ErrClosed
			}
			return fmt.Errorf("vhostuser: %w", err)
		}
		if s := d.connect(c); s != nil {
			err := s.serve()
			d.mu.Lock()
			d.current = nil
			drain := d.closed
			d.mu.Unlock()
			if err != nil && !drain {
				d.log.Error("front end is gone", "device", d.opts.Name, "err", err)
			}
			s.close(drain)
		}
	}
}

func (d *Device) connect(c *net.UnixConn) *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		c.Close()
		return nil
	}
	d.current = newSession(d, c)
	return d.current
}

// Close ends Serve, and returns when it has ended. Requests that were taken are
// completed first.
func (d *Device) Close() {
	d.mu.Lock()
	d.closed = true
	if d.listener != nil {
		d.listener.Close()
	}
	if d.current != nil {
		d.current.conn.CloseRead()
	}
	d.mu.Unlock()
	d.serving.Wait()
}

// Announce tells the driver, if there is one, of a change to logical unit n.
func (d *Device) Announce(n uint16, c Change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.current != nil {
		d.current.announce(n, c)
	}
}
