package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"lunlab/lab"
	"lunlab/lun"
	"lunlab/target"
	"lunlab/target/iscsi"
	"lunlab/target/vhostuser"
)

// reload has the server serve what a configuration says by now, or on a
// notReloaded what it served before. It returns what has changed.
func (s *served) reload(srv *iscsi.Server, path string) (string, error) {
	cfg, ch, err := s.controls.prepare(path, s.abort)
	if err != nil {
		return "", err
	}
	devices := maps.Clone(s.devices)
	for _, t := range cfg.Targets {
		if devices[t.Name] == nil {
			devices[t.Name] = target.New()
		}
	}
	old := s.swap(devices)
	targets := s.targetsOf(cfg)
	if err := srv.SetTargets(targets); err != nil {
		s.swap(old)
		return "", notReloaded{errors.Join(err, ch.Undo())}
	}
	// From here on it is done, whatever goes wrong.
	s.targets = targets
	var errs []error
	for _, u := range ch.Removed {
		devices[u.Target.Name].Remove(uint16(u.Config.Number))
		s.machines.announce(u, vhostuser.Removed)
		errs = append(errs, u.Close())
	}
	errs = append(errs, ch.Commit())
	for _, u := range ch.Added {
		errs = append(errs, s.add(u))
		s.machines.announce(u, vhostuser.Added)
	}
	for _, u := range ch.Kept {
		for _, lu := range devices[u.Target.Name].Units() {
			if int(lu.Number()) == u.Config.Number {
				errs = append(errs, lu.SetLimits(limitsOf(u.Target)))
			}
		}
	}
	return changed(ch), errors.Join(errs...)
}

// prepare reads a configuration, and opens what it has and the lab doesn't. Its
// errors are notReloaded. abort is that of [lab.Config.Build].
func (c *controls) prepare(path string, abort func(*lab.Target, int, *lun.Nexus)) (*lab.Config, *lab.Change, error) {
	cfg, err := c.lab.LoadOver(path)
	if err != nil {
		return nil, nil, notReloaded{err}
	}
	ch, err := c.lab.Prepare(cfg, abort)
	if err != nil {
		return nil, nil, notReloaded{err}
	}
	if _, err := c.faults(path, slices.Concat(ch.Added, ch.Kept)); err != nil {
		return nil, nil, notReloaded{errors.Join(err, ch.Undo())}
	}
	return cfg, ch, nil
}

// changed says what a change comes to.
func changed(ch *lab.Change) string {
	return fmt.Sprintf("%s added, %d removed, %d kept", count(len(ch.Added), "LUN"), len(ch.Removed), len(ch.Kept))
}

// hangup does what SIGHUP asks for, and says what came of it.
func hangup(path string, reload func() (string, error), stdout, stderr io.Writer) {
	if path == "" {
		fmt.Fprintln(stderr, "lunlab: there is no lab.yaml to read again: start with -f")
		return
	}
	said, err := reload()
	var not notReloaded
	switch {
	case errors.As(err, &not):
		fmt.Fprintf(stderr, "%v\nlunlab: all is as before\n", err)
	case err != nil:
		fmt.Fprintf(stderr, "lunlab: reloaded, but: %v\n", err)
		fallthrough
	default:
		fmt.Fprintf(stdout, "reloaded %s: %s\n", path, said)
	}
}

// notReloaded is why all is as it was before.
type notReloaded struct{ error }

func (s *served) swap(devices map[string]*target.Target) (old map[string]*target.Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, s.devices = s.devices, devices
	return old
}
