package tcmu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"lunlab/lun"
)

// Cleanup removes the TCMU devices that processes of ours left behind when they
// were killed, with the LUNs that refer to them and the hosts that are empty
// then; also the named hosts, if they are empty. It leaves alone what a living
// process serves, and what others made. It returns the paths in configfs that
// it removed, also beside an error.
//
// Commands that are stuck in such a device fail. A removal that waits for 5 s is
// taken for one that waits for a killed process: the kernel is then told to end
// all its waits for answers of TCMU daemons, those of other programs too, whose
// requests at that moment fail.
func (e *Engine) Cleanup(ctx context.Context, hosts ...string) (removed []string, err error) {
	// What goes on after ctx is done adds to it still.
	var (
		mu       sync.Mutex
		gone     []string
		resetErr error
	)
	note := func(paths ...string) {
		mu.Lock()
		defer mu.Unlock()
		gone = append(gone, paths...)
	}
	err = e.step(ctx, "clean up", func() error {
		// A process that was killed while the kernel waited for its answer
		// stays in the kernel, with a folder locked, until it is given one.
		stuck := time.AfterFunc(stuckTime, func() {
			err := e.resetNetlink()
			mu.Lock()
			defer mu.Unlock()
			resetErr = errors.Join(resetErr, err)
		})
		defer stuck.Stop()
		devices, err := e.coreDevices()
		if errors.Is(err, os.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		for _, name := range devices {
			stuck.Reset(stuckTime)
			r, rerr := e.removeStale(ctx, name)
			note(r...)
			err = errors.Join(err, rerr)
		}
		for _, wwn := range hosts {
			ok, rerr := e.removeEmptyHost(ctx, wwn)
			if ok {
				note(e.loopback(wwn))
			}
			err = errors.Join(err, rerr)
		}
		return err
	})
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(gone), errors.Join(err, resetErr)
}

// stuckTime is how long a removal takes that is stuck.
const stuckTime = 5 * time.Second

// removeStale removes the device core/NAME if it is ours and nobody serves it.
func (e *Engine) removeStale(ctx context.Context, name string) (removed []string, err error) {
	dir := e.core(name)
	mark, err := e.sys.read(filepath.Join(dir, "attrib/dev_config"))
	if err != nil || !strings.HasPrefix(mark, owner+"/") {
		return nil, nil // gone by now, or not ours
	}
	hba, dev := filepath.Split(name)
	n, err := strconv.Atoi(strings.TrimPrefix(strings.TrimSuffix(hba, "/"), "user_"))
	if err != nil {
		return nil, nil
	}
	cfg := Config{HBA: n, Name: dev}
	e.mu.Lock()
	mine := e.devices[cfg.key()] != nil
	e.mu.Unlock()
	if mine {
		return nil, nil
	}
	d, err := e.Adopt(ctx, cfg, refuser{})
	switch {
	case errors.Is(err, ErrInUse), errors.Is(err, ErrExists):
		return nil, nil
	case err != nil: // never enabled, most likely: there is no ring to serve
		d = e.device(cfg, refuser{})
		if err := e.claim(d); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			err = errors.Join(err, d.letGo(undo))
		}
	}()
	links, err := e.linksTo(name)
	if err != nil {
		return nil, err
	}
	var emptied []string
	for _, l := range links {
		if err := e.removeLUN(ctx, filepath.Dir(l)); err != nil {
			return removed, err
		}
		removed = append(removed, filepath.Dir(l))
		// loopback/WWN/tpgt_1/lun/lun_0/LINK
		wwn := filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(l)))))
		if !slices.Contains(emptied, wwn) {
			emptied = append(emptied, wwn)
		}
	}
	for _, wwn := range emptied {
		ok, err := e.removeEmptyHost(ctx, wwn)
		if err != nil {
			return removed, err
		}
		if ok {
			removed = append(removed, e.loopback(wwn))
		}
	}
	if err := d.remove(ctx); err != nil {
		return removed, err
	}
	return append(removed, dir), nil
}

// luns lists the LUN folders of a host.
func (e *Engine) luns(wwn string) ([]string, error) {
	var out []string
	tpgs, err := e.sys.list(e.loopback(wwn))
	for _, t := range tpgs {
		if !strings.HasPrefix(t, "tpgt_") {
			continue
		}
		luns, lerr := e.sys.list(e.loopback(wwn, t, "lun"))
		err = errors.Join(err, lerr)
		for _, l := range luns {
			if strings.HasPrefix(l, "lun_") {
				out = append(out, e.loopback(wwn, t, "lun", l))
			}
		}
	}
	return out, err
}

// linksTo finds the LUN links to the device core/NAME, on all hosts.
func (e *Engine) linksTo(name string) ([]string, error) {
	wwns, err := e.sys.list(e.loopback())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var out []string
	for _, w := range wwns {
		if !strings.Contains(w, ".") {
			continue // not a host: naa., iqn., fc.
		}
		dirs, err := e.luns(w)
		if err != nil {
			return nil, err
		}
		for _, dir := range dirs {
			names, err := e.sys.list(dir)
			if err != nil {
				return nil, err
			}
			for _, n := range names {
				if t, err := e.sys.readlink(filepath.Join(dir, n)); err == nil && strings.HasSuffix(t, "/core/"+name) {
					out = append(out, filepath.Join(dir, n))
				}
			}
		}
	}
	return out, nil
}

func (e *Engine) removeEmptyHost(ctx context.Context, wwn string) (bool, error) {
	dirs, err := e.luns(wwn)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	} else if err != nil || len(dirs) > 0 {
		return false, err
	}
	return true, e.removeHost(ctx, wwn)
}

// resetNetlink ends all waits of the kernel for an answer of a TCMU daemon.
func (e *Engine) resetNetlink() error {
	dir := e.sysfs("module/target_core_user/parameters")
	var err error
	for _, w := range [][2]string{{"block_netlink", "1"}, {"reset_netlink", "1"}, {"block_netlink", "0"}} {
		if werr := e.sys.write(filepath.Join(dir, w[0]), w[1]); werr != nil {
			err = errors.Join(err, fmt.Errorf("reset TCMU's netlink: %w", werr))
		}
	}
	return err
}

// refuser is a unit that carries out nothing.
type refuser struct{}

func (refuser) Execute(c *lun.Command)             { c.Fail(lun.Sense{Key: lun.NotReady, Code: 0x0403}) }
func (refuser) DataLength([]byte) (out, in uint64) { return 0, 0 }
func (refuser) Blocking() bool                     { return false }
func (refuser) Notify(*lun.Nexus, lun.Event)       {}
