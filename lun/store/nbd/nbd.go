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
	"sync/atomic"
	"syscall"

	"lunlab/lun/store"
)

// Options say how to use a server.
type Options struct {
	// Connections is how many to make, if the server says that this is safe. 0
	// is 1.
	Connections int

	// TLS is used for nbds: addresses. nil trusts what the system does, for the
	// host name of the address.
	TLS *tls.Config
}

// Store is an export of an NBD server.
//
// Once a connection is lost, every call fails: what the server had not made
// durable may be gone, and only who wrote it knows what to do about that.
type Store struct {
	conns []*conn
	next  atomic.Uint32
	info  export
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
	a, err := parse(address)
	if err != nil {
		return nil, fmt.Errorf("nbd: %w", err)
	}
	if a.tls && o.TLS == nil {
		o.TLS = &tls.Config{ServerName: a.host}
	}
	s := &Store{}
	for n := 1; ; n++ {
		c, info, err := dial(ctx, a, o.TLS)
		if err == nil && n > 1 && info != s.info {
			c.close(store.ErrClosed)
			err = errors.New("the export differs from one connection to the next")
		}
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("nbd: %s: %w", address, err)
		}
		s.info = info
		s.conns = append(s.conns, c)
		if n >= o.Connections || !info.has(flagMultiConn) {
			return s, nil
		}
	}
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

// pick returns the connection for the next call.
func (s *Store) pick() *conn {
	return s.conns[int(s.next.Add(1))%len(s.conns)]
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

// alive returns why a call that would send nothing has to fail.
func (s *Store) alive() error { return s.conns[0].failure() }

// ReadAt implements [store.Store].
func (s *Store) ReadAt(p []byte, off int64) (int, error) {
	if err := s.alive(); err != nil {
		return 0, err
	}
	return s.each(off, int64(len(p)), s.info.payload, func(at, n int64) error {
		return s.pick().do(&call{command: cmdRead, off: at, n: n, data: p[at-off : at-off+n]})
	})
}

func (s *Store) checkWrite() error {
	if err := s.alive(); err != nil {
		return err
	}
	if s.info.has(flagReadOnly) {
		return fmt.Errorf("nbd: the export is read-only: %w", syscall.EROFS)
	}
	return nil
}

// WriteAt implements [store.Store].
func (s *Store) WriteAt(p []byte, off int64) (int, error) {
	if err := s.checkRangeWrite(off, int64(len(p))); err != nil {
		return 0, err
	}
	return s.each(off, int64(len(p)), s.info.payload, func(at, n int64) error {
		return s.pick().do(&call{command: cmdWrite, off: at, n: n, data: p[at-off : at-off+n]})
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
// to punch a hole: what a TRIM leaves behind is anyone's guess.
func (s *Store) Unmap(off, n int64) error { return s.zero(off, n, 0) }

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
		return s.pick().do(&call{command: cmdWriteZeroes, flags: flags, off: at, n: n})
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
	c := call{command: cmdBlockStatus, flags: cmdFlagReqOne, off: off, n: min(limit, maxZero)}
	if err := s.pick().do(&c); err != nil {
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
	if !s.info.has(flagFlush) || s.info.has(flagReadOnly) {
		return nil
	}
	return s.pick().do(&call{command: cmdFlush})
}

// Close implements [store.Store]. It takes leave of the server and waits for
// what runs on the connections to end.
func (s *Store) Close() error {
	var errs []error
	for _, c := range s.conns {
		errs = append(errs, c.close(store.ErrClosed))
	}
	return errors.Join(errs...)
}
