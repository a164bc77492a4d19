package iscsi

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// input is what a connection has received and not yet looked at. It belongs to
// the connection's reader.
type input struct {
	nc   net.Conn
	buf  []byte
	r, w int

	// heard is when something came last, in Unix nanoseconds.
	heard atomic.Int64

	// dry is called before a read that may have to wait.
	dry func() error
}

var errInputTooLong = errors.New("iscsi: more than the input buffer holds")

// view returns the next n bytes without taking them. They stay where they are
// until the next call of any method but take.
func (in *input) view(n int) ([]byte, error) {
	if in.w-in.r >= n {
		return in.buf[in.r : in.r+n], nil
	}
	if n > len(in.buf) {
		return nil, errInputTooLong
	}
	if in.r+n > len(in.buf) || in.r == in.w {
		in.w = copy(in.buf, in.buf[in.r:in.w])
		in.r = 0
	}
	for in.w-in.r < n {
		if err := in.dry(); err != nil {
			return nil, err
		}
		k, err := in.nc.Read(in.buf[in.w:])
		in.w += k
		in.heard.Store(time.Now().UnixNano())
		if err != nil && in.w-in.r < n {
			if err == io.EOF && in.w > in.r {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return in.buf[in.r : in.r+n], nil
}

// take takes n bytes that were viewed.
func (in *input) take(n int) { in.r += n }

// resize makes room for n bytes. Views made before are void.
func (in *input) resize(n int) {
	if n == len(in.buf) || in.w-in.r > n {
		return
	}
	b := make([]byte, n)
	in.w = copy(b, in.buf[in.r:in.w])
	in.r, in.buf = 0, b
}

// readFull takes len(to) bytes into to: what isn't here yet straight from the
// network.
func (in *input) readFull(to []byte) error {
	n := copy(to, in.buf[in.r:in.w])
	in.r += n
	if n == len(to) {
		return nil
	}
	if err := in.dry(); err != nil {
		return err
	}
	_, err := io.ReadFull(in.nc, to[n:])
	in.heard.Store(time.Now().UnixNano())
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// skip takes n bytes and forgets them.
func (in *input) skip(n int) error {
	for n > 0 {
		k := min(n, len(in.buf))
		if _, err := in.view(k); err != nil {
			return err
		}
		in.take(k)
		n -= k
	}
	return nil
}
