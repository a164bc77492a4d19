package tcmu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// system is what the engine asks of the kernel through files. Errors name the
// path and the operation.
type system interface {
	mkdir(path string) error
	rmdir(path string) error
	unlink(path string) error
	symlink(target, path string) error
	readlink(path string) (string, error)
	list(dir string) ([]string, error)
	read(path string) (string, error) // without the white space around it
	write(path, value string) error
	openBlock(path string) error // nil if it is a block device that can be opened
	openUIO(path string, size int) (*uio, error)
	lock(dir string) (unlock func()) // keeps other processes out that lock it too
}

// uio is an open UIO device and its mapping.
type uio struct {
	bell
	mem   []byte
	close func() error
}

type osSystem struct{}

func (osSystem) mkdir(path string) error           { return os.Mkdir(path, 0o755) }
func (osSystem) symlink(target, path string) error { return os.Symlink(target, path) }

func (osSystem) rmdir(path string) error {
	if err := unix.Rmdir(path); err != nil {
		return &os.PathError{Op: "rmdir", Path: path, Err: err}
	}
	return nil
}

func (osSystem) unlink(path string) error {
	if err := unix.Unlink(path); err != nil {
		return &os.PathError{Op: "unlink", Path: path, Err: err}
	}
	return nil
}

func (osSystem) readlink(path string) (string, error) { return os.Readlink(path) }

func (osSystem) list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

func (osSystem) read(path string) (string, error) {
	b, err := os.ReadFile(path)
	return strings.TrimSpace(string(b)), err
}

// write stores value in an attribute, which has to be there, with one call.
func (osSystem) write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%w (writing %q)", err, value)
	}
	return nil
}

func (osSystem) openBlock(path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	if fi.Mode()&(os.ModeDevice|os.ModeCharDevice) != os.ModeDevice {
		return fmt.Errorf("%s is not a block device", path)
	}
	// The node is there a moment before the disk is.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == unix.ENOMEDIUM {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	return unix.Close(fd)
}

func (osSystem) openUIO(path string, size int) (*uio, error) {
	// Non-blocking, so that the runtime waits for it and a read can be ended.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s can't be polled: %w", path, err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.Close()
		return nil, &os.PathError{Op: "mmap", Path: path, Err: err}
	}
	return &uio{bell: f, mem: mem, close: func() error {
		return errors.Join(unix.Munmap(mem), f.Close())
	}}, nil
}

// lock does without where it can't be had: what it guards is looked at again.
func (osSystem) lock(dir string) (unlock func()) {
	f, err := os.Open(dir)
	if err != nil {
		return func() {}
	}
	unix.Flock(int(f.Fd()), unix.LOCK_EX)
	return func() { f.Close() }
}

// bounded runs f, which may wait in the kernel for as long as a command does,
// and gives up waiting for it when ctx is done. f then goes on by itself.
func bounded(ctx context.Context, f func() error) error {
	_, err := boundedValue(ctx, func() (struct{}, error) { return struct{}{}, f() }, nil)
	return err
}

// boundedValue is bounded for an f that makes something. What it makes when it
// isn't waited for any more goes to late.
func boundedValue[T any](ctx context.Context, f func() (T, error), late func(T)) (v T, err error) {
	if ctx.Err() != nil {
		return v, context.Cause(ctx)
	}
	type result struct {
		v   T
		err error
	}
	done, gaveUp := make(chan result), make(chan struct{})
	go func() {
		v, err := f()
		select {
		case done <- result{v, err}:
		case <-gaveUp:
			if err == nil && late != nil {
				late(v)
			}
		}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
	}
	// Most steps are short: one that is over can be taken back, and one that
	// still goes on can't.
	select {
	case r := <-done:
		return r.v, r.err
	case <-time.After(500 * time.Millisecond):
		close(gaveUp)
		return v, fmt.Errorf("the kernel is still at it: %w", context.Cause(ctx))
	}
}

func isErrno(err error, list ...syscall.Errno) bool {
	for _, e := range list {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
