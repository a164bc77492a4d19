// Package iscsi is an iSCSI target (RFC 7143): it brings the logical units of a
// [target.Target] to initiators over TCP.
//
// A connection has one goroutine, which reads, and which runs the commands of
// units that don't block; the others run on goroutines of their own. Whoever has
// an answer commits it to the connection's output, and whoever flushes first
// writes for all.
package iscsi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"lunlab/target"
)

// Target is a target as initiators see it: a name for a SCSI target device.
type Target struct {
	// Name is the iSCSI name: iqn., eui. or naa. and so on.
	Name string

	// Alias is shown to people by some initiators; may be empty.
	Alias string

	Device *target.Target

	// Access says which initiators may log in, the first entry that matches. An
	// empty list lets all in.
	Access []Access

	// Redirect, if not nil, sends all who log in elsewhere.
	Redirect *Redirect

	// PortalGroups are the tags of those by which the target can be reached. An
	// empty list means all.
	PortalGroups []uint16

	// HWQueues is the most connections that a session may have, 1 to 16. 0
	// means 1.
	HWQueues int

	// CanQueue is the most commands that a session may have sent and not had
	// answered: the distance of MaxCmdSN. 0 means DefaultCanQueue.
	CanQueue int
}

// DefaultCanQueue is a session's command window if the target doesn't say:
// open-iscsi's node.session.cmds_max.
const DefaultCanQueue = 128

// minBuffer is the least that MaxBuffer may be.
const minBuffer = 1 << 20

// maxHWQueues is as many connections as a session can have.
const maxHWQueues = 16

// maxCanQueue keeps the window well below half the serial number space.
const maxCanQueue = 1 << 16

// Options are what a server needs to know. The zero value of each but Targets
// stands for a default.
type Options struct {
	Targets []*Target

	// DiscoveryCHAP is how initiators of discovery sessions prove who they are.
	// nil means not at all.
	DiscoveryCHAP *CHAP

	// Log gets logins, logouts and whatever ends a connection early.
	Log *slog.Logger

	// MaxBuffer bounds the memory for data on its way, of all sessions, in bytes.
	// MaxBuffer/2/MaxConnections is each session's own; beyond that a session may
	// have as much of the other half as it leaves free. Commands that would pass it
	// get BUSY. It has to be more than eight times the longest transfer of any disk,
	// and 1 MiB at the least: a command is refused that what a session alone may have
	// isn't enough for. Default 512 MiB.
	MaxBuffer int64

	// MaxConnections bounds the connections at a time, of all sessions and those
	// that haven't logged in. Beside them a few more are told that they are too many.
	// Default 1024.
	MaxConnections int

	// LoginTimeout is how long a connection may take to log in. Default 15 s.
	LoginTimeout time.Duration

	// PingInterval is how long a connection may be silent before it is sent a
	// NOP-In, and how long it then has to answer. Default 30 s.
	PingInterval time.Duration

	// WriteTimeout is how long a peer may leave its data unread. Default 60 s.
	WriteTimeout time.Duration
}

// Server serves targets. Its methods are safe for concurrent use.
type Server struct {
	opt     Options
	log     *slog.Logger
	targets atomic.Pointer[map[string]*Target] // by name in lower case; replaced, never changed
	pool    bufferPool
	asked   challenges

	// maxTransfer is the most data of a command one way, in bytes: MaxTransfer, or
	// what MaxBuffer allows, with protection information.
	maxTransfer uint64

	mu        sync.Mutex
	listeners map[net.Listener]uint16 // with their portal group tags
	conns     map[*conn]struct{}
	surplus   int // of them
	sessions  map[uint16]*session
	nextTSIH  uint16
	closing   bool

	wg       sync.WaitGroup // connections, commands on their own goroutines, the watch
	stopped  chan struct{}
	stopOnce sync.Once
}

// ErrServerClosed is what Serve returns after Shutdown or Close.
var ErrServerClosed = errors.New("iscsi: server closed")

// NewServer checks the options and makes a server. It does nothing until Serve.
func NewServer(opt Options) (*Server, error) {
	def(&opt.MaxBuffer, 512<<20)
	def(&opt.MaxConnections, 1024)
	def(&opt.LoginTimeout, 15*time.Second)
	def(&opt.PingInterval, 30*time.Second)
	def(&opt.WriteTimeout, 60*time.Second)
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		opt: opt, log: opt.Log,
		listeners: map[net.Listener]uint16{},
		conns:     map[*conn]struct{}{},
		sessions:  map[uint16]*session{},
		stopped:   make(chan struct{}),
	}
	if opt.MaxBuffer < minBuffer {
		return nil, fmt.Errorf("iscsi: a MaxBuffer of %d bytes is less than %d", opt.MaxBuffer, minBuffer)
	}
	s.pool.init(opt.MaxBuffer, opt.MaxConnections)
	blocks := uint64(s.pool.maxBlocks())
	s.maxTransfer = blocks + blocks/512*8
	if opt.DiscoveryCHAP != nil {
		if err := opt.DiscoveryCHAP.check(); err != nil {
			return nil, fmt.Errorf("iscsi: discovery: %w", err)
		}
	}
	targets, err := checkTargets(opt.Targets, blocks)
	if err != nil {
		return nil, err
	}
	s.targets.Store(&targets)
	s.wg.Add(1)
	go s.watch()
	return s, nil
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Serve is [Server.ServeGroup] with portal group tag 1.
func (s *Server) Serve(ln net.Listener) error { return s.ServeGroup(ln, 1) }

// ServeGroup accepts connections until the server is shut down, and closes ln.
// tag is the portal group that ln is a portal of (RFC 7143 4.4.1): a session's
// connections all come by portals of one group.
func (s *Server) ServeGroup(ln net.Listener, tag uint16) error {
	defer ln.Close()
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return ErrServerClosed
	}
	s.listeners[ln] = tag
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, ln)
		s.mu.Unlock()
	}()
	for {
		nc, err := ln.Accept()
		if err != nil {
			s.mu.Lock()
			closing := s.closing
			s.mu.Unlock()
			if closing {
				return ErrServerClosed
			}
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() || isTooManyFiles(err) {
				// Connections that end will make room.
				s.log.Warn("accept", "err", err)
				time.Sleep(100 * time.Millisecond)
				continue
			}
			return fmt.Errorf("iscsi: accept: %w", err)
		}
		s.start(nc, tag)
	}
}

// maxSurplus is how many connections beyond MaxConnections may wait to be told so.
const maxSurplus = 16

func (s *Server) start(nc net.Conn, tag uint16) {
	c := newConn(s, nc, tag)
	s.mu.Lock()
	c.surplus = len(s.conns)-s.surplus >= s.opt.MaxConnections
	if s.closing || c.surplus && s.surplus == maxSurplus {
		s.mu.Unlock()
		s.log.Warn("connection refused: as many as there may be", "from", nc.RemoteAddr(), "max", s.opt.MaxConnections)
		nc.Close()
		return
	}
	s.conns[c] = struct{}{}
	if c.surplus {
		s.surplus++
	}
	s.wg.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.wg.Done()
		c.serve()
		s.mu.Lock()
		delete(s.conns, c)
		if c.surplus {
			s.surplus--
		}
		s.mu.Unlock()
	}()
}

// Shutdown stops accepting, asks each initiator to log out, and waits until
// they have, or until ctx is done, or until nothing has been in flight for a
// moment; then it closes what is left, with the commands in flight finished and
// answered. It is not an error that initiators stay.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stopAccepting()
	for _, c := range s.list() {
		c.requestLogout()
	}
	quiet := 0
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for quiet < shutdownQuietTicks {
		select {
		case <-ctx.Done():
			s.Close()
			return ctx.Err()
		case <-tick.C:
		}
		cs := s.list()
		if len(cs) == 0 {
			break
		}
		quiet++
		for _, c := range cs {
			if c.busy() {
				quiet = 0
			}
		}
	}
	return s.Close()
}

// shutdownQuietTicks is how many looks in a row must find nothing in flight:
// half a second.
const shutdownQuietTicks = 10

// Close ends all connections at once and waits for their goroutines.
func (s *Server) Close() error {
	s.stopAccepting()
	for _, c := range s.list() {
		c.nc.Close()
	}
	s.stopOnce.Do(func() { close(s.stopped) })
	// Those whose connections are gone don't end with them.
	for _, x := range s.listSessions() {
		x.close("server closed")
	}
	s.wg.Wait()
	return nil
}

func (s *Server) stopAccepting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	for ln := range s.listeners {
		ln.Close()
	}
}

func (s *Server) list() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	cs := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		cs = append(cs, c)
	}
	return cs
}

func (s *Server) listSessions() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.sessions))
}

// watch ends connections that take too long over something.
func (s *Server) watch() {
	defer s.wg.Done()
	tick := time.NewTicker(min(time.Second, s.opt.LoginTimeout/4, s.opt.PingInterval/4, s.opt.WriteTimeout/4))
	defer tick.Stop()
	for {
		select {
		case <-s.stopped:
			return
		case now := <-tick.C:
			for _, c := range s.list() {
				c.watch(now)
			}
			for _, x := range s.listSessions() {
				x.expire(now)
			}
		}
	}
}
