// Package nbd is a store on an NBD server (Network Block Device, the protocol of
// https://github.com/NetworkBlockDevice/nbd): qemu-nbd, nbdkit, nbd-server, and
// what lies behind them.
package nbd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"lunlab/lun/store"
)

// MaxConnections is the most connections that a store makes.
const MaxConnections = 16

// DefaultTimeout is how long a server may take if nothing is said.
const DefaultTimeout = 30 * time.Second

// Options say how to use a server.
type Options struct {
	// Connections is how many to make, up to [MaxConnections], if the server says
	// that this is safe. 0 is 1.
	Connections int

	// Timeout is how long the server may take to answer a request before its
	// connection is given up as lost. 0 is [DefaultTimeout].
	Timeout time.Duration

	// Reconnect is how long to try to get a lost connection back, while the calls
	// that were under way wait. 0 is not at all: they fail, and all later ones.
	Reconnect time.Duration

	// TLS is used for nbds: addresses. nil trusts what the system does, for the
	// host name of the address.
	TLS *tls.Config
}

// Store is an export of an NBD server.
//
// What the server had not made durable may be gone when a connection is lost,
// and only who wrote it knows what to do about that. So where it was written and
// not flushed, the next Sync fails, be the connection back or not. Calls whose
// answer is outstanding are made once more when it is back.
type Store struct {
	target target
	opt    Options
	slots  []*slot
	next   atomic.Uint32
	info   export
	log    unflushed

	closing context.Context // ends with Close
	close   context.CancelFunc
	closed  atomic.Bool
	dialing sync.WaitGroup
}

// Open connects to the export that an address names, of one of the forms
//
//	nbd://host:port/export
//	nbds://host:port/export
//	nbd+unix:///export?socket=/path
//	nbds+unix:///export?socket=/path
//
// The port is 10809 if there is none. ctx bounds the time that this takes.
func Open(ctx context.Context, address string, o Options) (*Store, error) {
	t, err := parse(address)
	if err != nil {
		return nil, fmt.Errorf("nbd: %w", err)
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Connections < 0 || o.Connections > MaxConnections || o.Timeout < 0 || o.Reconnect < 0 {
		return nil, fmt.Errorf("nbd: there can't be %d connections with a time-out of %v, or %v to get one back", o.Connections, o.Timeout, o.Reconnect)
	}
	if t.tls && (o.TLS == nil || o.TLS.ServerName == "") {
		if o.TLS == nil {
			o.TLS = &tls.Config{}
		}
		o.TLS = o.TLS.Clone()
		o.TLS.ServerName = t.host
	}
	s := &Store{target: t, opt: o}
	s.closing, s.close = context.WithCancel(context.Background())
	for n := 1; ; n++ {
		c, info, err := dial(ctx, t, &s.opt, &s.log)
		if err == nil && n > 1 && info != s.info {
			c.close(store.ErrClosed)
			err = errDiffers
		}
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("nbd: %s: %w", address, err)
		}
		s.info = info
		s.slots = append(s.slots, &slot{store: s, conn: c})
		if n >= o.Connections || !info.has(flagMultiConn) {
			return s, nil
		}
	}
}

var errDiffers = errors.New("the export differs from one connection to the next")

// WantAddress says what an address has to look like.
const WantAddress = "nbd://HOST:PORT/EXPORT, nbd+unix:///EXPORT?socket=/PATH, or nbds for TLS"

// CheckAddress returns what is wrong with an address.
func CheckAddress(address string) error {
	_, err := parse(address)
	return err
}

// target is a parsed address.
type target struct {
	network, address string
	host, export     string
	tls              bool
}

func parse(address string) (t target, err error) {
	u, err := url.Parse(address)
	if err != nil {
		return t, err
	}
	if len(u.Path) > 0 {
		t.export = u.Path[1:]
	}
	if len(t.export) > maxName {
		return t, fmt.Errorf("the name of the export is longer than %d bytes", maxName)
	}
	switch u.Scheme {
	case "nbd", "nbds":
		port := u.Port()
		if port == "" {
			port = "10809"
		}
		t.network, t.host, t.address = "tcp", u.Hostname(), net.JoinHostPort(u.Hostname(), port)
		if t.host == "" {
			return t, fmt.Errorf("%s names no host", address)
		}
	case "nbd+unix", "nbds+unix":
		t.network, t.host, t.address = "unix", "localhost", u.Query().Get("socket")
		if t.address == "" {
			return t, fmt.Errorf("%s has no socket=/path", address)
		}
	default:
		return t, fmt.Errorf("%s doesn't begin with nbd:, nbds:, nbd+unix: or nbds+unix: as it has to", address)
	}
	t.tls = u.Scheme[3:] == "s" || u.Scheme[3:] == "s+unix"
	return t, nil
}

// do makes a call on the connection whose turn it is.
func (s *Store) do(k call) (call, error) {
	return s.slots[int(s.next.Add(1))%len(s.slots)].do(k)
}

// each calls do for pieces of n bytes at off that fit a request.
func (s *Store) each(off, n, most int64, do func(off, n int64) error) (int, error) {
	if err := store.CheckRange(s.info.size, off, n); err != nil {
		return 0, err
	}
	done := int64(0)
	for done < n {
		part := min(n-done, most)
		if err := do(off+done, part); err != nil {
			return int(done), err
		}
		done += part
	}
	return int(done), nil
}

// Size implements [store.Store].
func (s *Store) Size() int64 { return s.info.size }

// Blocking implements [store.Waiter].
func (s *Store) Blocking() bool { return true }

// ReadOnly implements [store.Guarded].
func (s *Store) ReadOnly() bool { return s.info.has(flagReadOnly) }

// alive returns why a call that would send nothing has to fail.
func (s *Store) alive() error {
	if s.closing.Err() != nil {
		return store.ErrClosed
	}
	if s.opt.Reconnect == 0 {
		return s.log.everLost()
	}
	return nil
}

// ReadAt implements [store.Store].
func (s *Store) ReadAt(p []byte, off int64) (int, error) {
	if err := s.alive(); err != nil {
		return 0, err
	}
	return s.each(off, int64(len(p)), s.info.payload, func(at, n int64) error {
		_, err := s.do(call{command: cmdRead, off: at, n: n, data: p[at-off : at-off+n]})
		return err
	})
}

func (s *Store) checkWrite() error {
	if err := s.alive(); err != nil {
		return err
	}
	if s.ReadOnly() {
		return fmt.Errorf("nbd: the export is read-only: %w", syscall.EROFS)
	}
	return nil
}

// WriteAt implements [store.Store].
func (s *Store) WriteAt(p []byte, off int64) (int, error) { return s.write(p, off, 0) }

// WriteDurable implements [store.DurableWriter] with the FUA flag, if the server
// knows it, and else with a flush.
func (s *Store) WriteDurable(p []byte, off int64) (int, error) {
	if s.info.has(flagFUA) {
		return s.write(p, off, cmdFlagFUA)
	}
	n, err := s.write(p, off, 0)
	if err == nil {
		err = s.Sync()
	}
	return n, err
}

func (s *Store) write(p []byte, off int64, flags uint16) (int, error) {
	if err := s.checkRangeWrite(off, int64(len(p))); err != nil {
		return 0, err
	}
	return s.each(off, int64(len(p)), s.info.payload, func(at, n int64) error {
		_, err := s.do(call{command: cmdWrite, flags: flags, off: at, n: n, data: p[at-off : at-off+n]})
		return err
	})
}

func (s *Store) checkRangeWrite(off, n int64) error {
	if err := s.checkWrite(); err != nil {
		return err
	}
	return store.CheckRange(s.info.size, off, n)
}

// maxZero is the most bytes that a request without data is for.
const maxZero = 1 << 30

// Unmap implements [store.Sparse]. It asks for zeros and leaves the server free
// to punch a hole. What a TRIM leaves behind is anyone's guess, so that it is for
// a server that can't write zeros and whose block status tells where there are
// none afterwards.
func (s *Store) Unmap(off, n int64) error {
	if s.info.has(flagWriteZeroes) || !s.info.has(flagTrim) || !s.info.status {
		return s.zero(off, n, 0)
	}
	if err := s.checkRangeWrite(off, n); err != nil {
		return err
	}
	if _, err := s.each(off, n, maxZero, func(at, n int64) error {
		_, err := s.do(call{command: cmdTrim, off: at, n: n})
		return err
	}); err != nil {
		return err
	}
	for end := off + n; off < end; {
		mapped, n, err := s.Extent(off, end-off)
		if err == nil && mapped {
			err = store.Zero(plain{s}, off, n)
		}
		if err != nil {
			return err
		}
		off += n
	}
	return nil
}

// Zero implements [store.Zeroer].
func (s *Store) Zero(off, n int64) error { return s.zero(off, n, cmdFlagNoHole) }

func (s *Store) zero(off, n int64, flags uint16) error {
	if err := s.checkRangeWrite(off, n); err != nil {
		return err
	}
	if !s.info.has(flagWriteZeroes) {
		return store.Zero(plain{s}, off, n)
	}
	_, err := s.each(off, n, maxZero, func(at, n int64) error {
		_, err := s.do(call{command: cmdWriteZeroes, flags: flags, off: at, n: n})
		return err
	})
	return err
}

// plain hides the better ways to write zeros from store.Zero.
type plain struct{ store.Store }

// Extent implements [store.Sparse]. Without block status all of it is mapped.
func (s *Store) Extent(off, limit int64) (mapped bool, n int64, err error) {
	if err := s.alive(); err != nil {
		return false, 0, err
	}
	if err := store.CheckRange(s.info.size, off, 1); err != nil {
		return false, 0, err
	}
	limit = min(s.info.size-off, max(limit, 1))
	if !s.info.status {
		return true, limit, nil
	}
	c, err := s.do(call{command: cmdBlockStatus, flags: cmdFlagReqOne, off: off, n: min(limit, maxZero)})
	if err != nil {
		return false, 0, err
	}
	return c.state&(stateHole|stateZero) != stateHole|stateZero, min(limit, max(c.extent, 1)), nil
}

// Sync implements [store.Store]. A server that can't flush is taken at its word
// that there is nothing to.
func (s *Store) Sync() error {
	if err := s.alive(); err != nil {
		return err
	}
	written, err := s.log.begin()
	if err != nil {
		return err
	}
	if !s.info.has(flagFlush) || s.ReadOnly() {
		return nil
	}
	if _, err = s.do(call{command: cmdFlush}); err != nil {
		return err
	}
	return s.log.flushed(written)
}

// Close implements [store.Store]. It takes leave of the server and waits for
// what runs on the connections to end.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return store.ErrClosed
	}
	s.close()
	for _, x := range s.slots {
		x.current() // from now on it won't begin to dial
	}
	s.dialing.Wait()
	for _, x := range s.slots {
		x.current().close(store.ErrClosed)
	}
	return nil
}
