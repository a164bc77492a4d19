package iscsi

import (
	"fmt"
	"slices"
	"strings"

	"lunlab/lun"
	"lunlab/target"
)

// target is the one with a name, or nil.
func (s *Server) target(name string) *Target { return (*s.targets.Load())[strings.ToLower(name)] }

// same tells whether two are one target, perhaps before and after SetTargets.
func (t *Target) same(o *Target) bool {
	return t.Device == o.Device && strings.EqualFold(t.Name, o.Name)
}

// SetTargets has the server serve other targets from now on, or says what is wrong
// with them and changes nothing. A target that stays has the same name and Device.
//
// New sessions go by what is new. Those that are there keep the limits that they
// were told of; they end if their target is gone or may not be used by their
// initiator any more, and what they see of it changes with the unit attention
// REPORTED LUNS DATA HAS CHANGED.
func (s *Server) SetTargets(list []*Target) error {
	targets, err := checkTargets(list, uint64(s.pool.maxBlocks()))
	if err != nil {
		return err
	}
	s.targets.Store(&targets)
	for _, x := range s.listSessions() {
		if x.tgt == nil {
			continue
		}
		t := targets[strings.ToLower(x.tgt.Name)]
		if t == nil || !t.same(x.tgt) {
			x.close("its target is gone")
			continue
		}
		a := t.accessFor(x.initiator)
		if a == nil || !t.in(x.tag) {
			x.close("it may not use its target any more")
			continue
		}
		if old := x.access.Swap(a); (old.LUNs == nil) != (a.LUNs == nil) || !slices.Equal(old.LUNs, a.LUNs) {
			x.nexus.InventoryChanged()
		}
	}
	return nil
}

// checkTargets fills in what targets leave to be chosen, and returns them by name.
// blocks is the most bytes of blocks that a command can move.
func checkTargets(list []*Target, blocks uint64) (map[string]*Target, error) {
	targets := map[string]*Target{}
	for _, t := range list {
		if err := CheckName(t.Name); err != nil {
			return nil, fmt.Errorf("iscsi: target: %w", err)
		}
		def(&t.CanQueue, DefaultCanQueue)
		if t.CanQueue < 1 || t.CanQueue > maxCanQueue {
			return nil, fmt.Errorf("iscsi: target %s: can_queue %d is not in 1 to %d", t.Name, t.CanQueue, maxCanQueue)
		}
		def(&t.HWQueues, 1)
		if t.HWQueues < 1 || t.HWQueues > maxHWQueues {
			return nil, fmt.Errorf("iscsi: target %s: hw_queues %d is not in 1 to %d", t.Name, t.HWQueues, maxHWQueues)
		}
		for i := range t.Access {
			if err := t.Access[i].check(); err != nil {
				return nil, fmt.Errorf("iscsi: target %s: %w", t.Name, err)
			}
		}
		if err := checkTransfer(t.Device, blocks); err != nil {
			return nil, fmt.Errorf("iscsi: target %s: %w", t.Name, err)
		}
		name := strings.ToLower(t.Name)
		if targets[name] != nil {
			return nil, fmt.Errorf("iscsi: two targets are named %s", t.Name)
		}
		targets[name] = t
	}
	return targets, nil
}

// checkTransfer refuses disks that announce longer transfers than there can be. What
// isn't seen here, because it is wrapped or added later, fails such commands.
func checkTransfer(d *target.Target, most uint64) error {
	if d == nil {
		return nil // it only redirects
	}
	for _, u := range d.Units() {
		unit := u.Unit()
		if w, ok := unit.(interface{ Unit() lun.Unit }); ok {
			unit = w.Unit() // what a fault.Unit is in front of
		}
		if disk, ok := unit.(*lun.Disk); ok {
			o := disk.Options()
			if n := uint64(o.MaxTransfer) * uint64(o.BlockSize); n > most {
				return fmt.Errorf("LUN %d may transfer %d bytes at once, more than %d", u.Number(), n, most)
			}
		}
	}
	return nil
}
