// Package tcmu puts logical units behind the kernel's TCMU (TCM in userspace,
// target_core_user) and presents them to the same kernel through tcm_loop, as
// disks with host limits of one's choice.
//
// An [Engine] talks to one kernel. [Engine.Create] makes a TCMU device for a
// [lun.Unit] and serves its ring; [Engine.CreateLoop] makes a SCSI host, and
// [Loop.Attach] gives that host the device as a LUN. They are undone in the
// opposite order: [Disk.Detach], [Loop.Close], [Device.Close], [Engine.Close].
// What a process left that was killed in between, [Engine.Cleanup] removes.
//
// All of it needs root, the modules target_core_user and tcm_loop, and configfs;
// [Prepare] sees to the latter two.
//
// Steps that wait in the kernel take a context. When it is done they return,
// but the kernel may still finish what it was asked to do.
package tcmu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Options say where the kernel's files are, and how it is talked to. The zero
// value is right for a running system.
type Options struct {
	Configfs string // where configfs is mounted: /sys/kernel/config
	Sysfs    string // /sys
	Dev      string // /dev

	// NoNetlink does without netlink: the kernel then doesn't wait for us when
	// a device is made or removed, and changes (dev_size …) go unnoticed.
	NoNetlink bool
}

// Engine drives TCMU and tcm_loop. It is safe for concurrent use.
type Engine struct {
	opts   Options
	sys    system
	events notifier // nil without netlink

	mu      sync.Mutex
	devices map[string]*Device // by deviceKey

	params sync.Mutex // held while tcm_loop's parameters are another's than before
}

// notifier is what the engine needs of [events].
type notifier interface {
	add(device string, change func(Reconfig) error)
	remove(device string)
	setReplies(on bool) error
	failed() error
	close() error
}

// Open checks that the kernel has TCMU and connects to it.
func Open(opts Options) (*Engine, error) {
	e := newEngine(opts, osSystem{})
	if _, err := e.sys.list(e.core()); err != nil {
		return nil, fmt.Errorf("tcmu: the target subsystem isn't there (modprobe target_core_user; mount -t configfs configfs %s): %w", e.opts.Configfs, err)
	}
	if !opts.NoNetlink {
		l, err := listenEvents()
		if err != nil {
			return nil, fmt.Errorf("tcmu: %w", err)
		}
		e.events = l
	}
	return e, nil
}

func newEngine(opts Options, sys system) *Engine {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&opts.Configfs, "/sys/kernel/config")
	def(&opts.Sysfs, "/sys")
	def(&opts.Dev, "/dev")
	return &Engine{opts: opts, sys: sys, devices: make(map[string]*Device)}
}

// Close disconnects. The engine's devices have to be closed before.
//
// If no TCMU device of anybody else is there, the kernel is told that nobody
// answers its netlink events any more: else the next one to make a device
// without a daemon would wait for ever.
func (e *Engine) Close() error {
	e.mu.Lock()
	n := len(e.devices)
	e.mu.Unlock()
	if n > 0 {
		return fmt.Errorf("tcmu: %d devices are still open", n)
	}
	if e.events == nil {
		return nil
	}
	var err error
	if names, lerr := e.coreDevices(); lerr == nil && len(names) == 0 {
		err = e.events.setReplies(false)
	}
	return errors.Join(err, e.events.close())
}

func (e *Engine) core(path ...string) string {
	return filepath.Join(append([]string{e.opts.Configfs, "target", "core"}, path...)...)
}

func (e *Engine) loopback(path ...string) string {
	return filepath.Join(append([]string{e.opts.Configfs, "target", "loopback"}, path...)...)
}

func (e *Engine) sysfs(path ...string) string {
	return filepath.Join(append([]string{e.opts.Sysfs}, path...)...)
}

// coreDevices lists the TCMU devices in configfs, anybody's, as "user_0/t0".
func (e *Engine) coreDevices() ([]string, error) {
	hbas, err := e.sys.list(e.core())
	if err != nil {
		return nil, err
	}
	var out []string
	for _, hba := range hbas {
		if !strings.HasPrefix(hba, "user_") {
			continue
		}
		names, err := e.sys.list(e.core(hba))
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			if n != "hba_info" && n != "hba_mode" { // the HBA's attributes
				out = append(out, hba+"/"+n)
			}
		}
	}
	return out, nil
}

// mkdirIn makes a folder, and the one that it lies in if need be. That one may
// be removed at the same time, since it goes with the last that lies in it.
func (e *Engine) mkdirIn(path string) error {
	for n := 0; ; n++ {
		parent := filepath.Dir(path)
		if err := e.sys.mkdir(parent); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		err := e.sys.mkdir(path)
		if !errors.Is(err, os.ErrNotExist) || n == 3 {
			if err != nil {
				e.sys.rmdir(parent) // stays if anything is in it
			}
			return err
		}
	}
}

// step runs one step in the kernel and says which, if it fails.
func (e *Engine) step(ctx context.Context, what string, f func() error) error {
	err := bounded(ctx, f)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("tcmu: %s: %w", what, err)
	if e.events != nil {
		err = errors.Join(err, e.events.failed()) // perhaps why it took too long
	}
	return err
}
