package nbd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"lunlab/lun/store"
)

// slot is the place of a connection: another takes it when one is lost.
type slot struct {
	store *Store

	mu   sync.Mutex
	conn *conn
	back *back // being made, nil if none is
}

// back is an attempt to get a connection back.
type back struct {
	done chan struct{}
	err  error // when done is closed
}

// current returns the connection, lost or not.
func (x *slot) current() *conn {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.conn
}

// do makes a call, again on another connection if this one is lost. It returns
// the call that was answered.
func (x *slot) do(k call) (call, error) {
	for {
		c, err := x.connection()
		if err != nil {
			return k, err
		}
		again := k
		if err = c.do(&again); err == nil || !isLost(err) {
			return again, err
		}
		if x.store.opt.Reconnect == 0 {
			return k, err
		}
		if k.command == cmdFlush {
			// What it was to make durable may be gone.
			if _, err := x.store.log.begin(); err != nil {
				return k, err
			}
		}
	}
}

// connection returns one that isn't lost, as far as is known.
func (x *slot) connection() (*conn, error) {
	x.mu.Lock()
	c := x.conn
	err := c.failure()
	if err == nil || !isLost(err) || x.store.opt.Reconnect == 0 {
		x.mu.Unlock()
		return c, err
	}
	if x.back == nil {
		if x.store.closing.Err() != nil {
			x.mu.Unlock()
			return nil, store.ErrClosed
		}
		b := &back{done: make(chan struct{})}
		x.back = b
		x.store.dialing.Go(func() { x.reconnect(b) })
	}
	b := x.back
	x.mu.Unlock()
	<-b.done
	if b.err != nil {
		return nil, b.err
	}
	return x.current(), nil
}

// reconnect tries to connect until it succeeds, or it has taken too long.
func (x *slot) reconnect(b *back) {
	s := x.store
	ctx, cancel := context.WithTimeout(s.closing, s.opt.Reconnect)
	defer cancel()
	var c *conn
	var info export
	var err error
	for {
		c, info, err = dial(ctx, s.target, &s.opt, &s.log)
		if err == nil && info != s.info {
			c.close(store.ErrClosed)
			err = errDiffers
		}
		if err == nil || !pause(ctx, reconnectPause) {
			break
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case err == nil:
		x.conn = c
	case s.closing.Err() != nil:
		b.err = store.ErrClosed
	default:
		b.err = lost(fmt.Errorf("not back within %v: %w", s.opt.Reconnect, err))
	}
	x.back = nil
	close(b.done)
}

// reconnectPause is the time between two attempts.
const reconnectPause = 100 * time.Millisecond

// pause waits, and tells whether ctx hasn't ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// unflushed knows whether writes that the server has answered are yet to be
// flushed, on any connection, and what became of them.
//
// A write counts from its answer on, so that one whose answer is outstanding is
// nobody's loss: it is made again.
type unflushed struct {
	mu      sync.Mutex
	written uint64 // answered
	durable uint64 // of those: known to be
	loss    error  // that nobody was told of
	first   error  // connection that was lost
}

func (u *unflushed) wrote() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.written++
}

// lose says that a connection is gone.
func (u *unflushed) lose(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.first == nil {
		u.first = err
	}
	if u.written > u.durable && u.loss == nil {
		u.loss = fmt.Errorf("what was not flushed may be lost: %w", err)
	}
}

func (u *unflushed) everLost() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.first
}

// begin returns what a flush that begins now makes durable, or tells once of a
// loss.
func (u *unflushed) begin() (written uint64, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.written, u.tell()
}

// flushed says that a flush has ended well.
func (u *unflushed) flushed(written uint64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.tell(); err != nil {
		return err
	}
	u.durable = max(u.durable, written)
	return nil
}

// tell returns a loss, once. What is gone needn't be flushed any more. mu is held.
func (u *unflushed) tell() error {
	err := u.loss
	if err != nil {
		u.loss, u.durable = nil, u.written
	}
	return err
}
