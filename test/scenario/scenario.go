package scenario

import (
	"context"
	"fmt"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"
)

// Scenario is one thing to exercise on a kernel.
type Scenario struct {
	Name  string // what [Find] matches: "limits/tcm_loop/1/64/32"
	Shows string // what is learnt from it, a sentence

	// Hosts are the kinds of host that it makes, whose modules the kernel needs.
	Hosts []string
	// Timeout is how long it may take, on a kernel that is emulated: then it is stuck.
	Timeout time.Duration

	// virtual says that it can be carried out in virtual time: no program in it, such
	// as fio, works for so long as the clock says, which stands still meanwhile.
	virtual bool

	limits Case     // of a limits scenario
	served Case     // of another, what the host serves: see virtIO
	faults []string // rules of that LUN
	run    func(context.Context, *run) error
}

// Limits are the scenarios that a run tries if it isn't told otherwise: the
// host configurations of [Cases].
func Limits() []Scenario {
	var ss []Scenario
	for _, c := range Cases() {
		ss = append(ss, c.Scenario())
	}
	return ss
}

// All are all scenarios that have a name of their own, [Limits] first.
func All() []Scenario { return append(Limits(), others...) }

// others are the scenarios beside the limits, in the order in which they run.
var others = []Scenario{
	attachCycles, scanRescan, depthSweep, depthSweepQueues, countersRest, countersHeld,
	fullStorm, busyZero, ehAbort, ehLUNReset, ehResets, ehEscalation, ehLate, ehHeld, stateOffline, stateRefused,
	stuckOne, schedSwitch, cpuHotplug, sgBeside,
	countersErrors, uaIO, eraseSanitize, eraseFormat, targetKilled, suspendFreezer, suspendDevices,
	ataScenario(AHCI), ataRescan, ataScenario(ATAPIIX),
}

// Virtual are those that can be carried out in virtual time.
func Virtual() []Scenario {
	return slices.DeleteFunc(slices.Clone(others), func(s Scenario) bool { return !s.virtual })
}

// Find returns the scenarios whose names, or the front of whose names, match a
// shell pattern: "limits/tcm_loop/2" has all of that host and number of queues.
// The name of a limits scenario may be one that isn't in [All], with any limits.
func Find(pattern string) ([]Scenario, error) {
	var out []Scenario
	for _, s := range All() {
		ok, err := path.Match(pattern, s.Name)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", pattern, err)
		}
		for name := path.Dir(s.Name); !ok && name != "."; name = path.Dir(name) {
			ok, _ = path.Match(pattern, name)
		}
		if s.Name == pattern {
			return []Scenario{s}, nil
		}
		if ok {
			out = append(out, s)
		}
	}
	if out != nil {
		return out, nil
	}
	s, err := lookup(pattern)
	if err != nil {
		return nil, err
	}
	return []Scenario{s}, nil
}

// lookup returns the scenario of that name.
func lookup(name string) (Scenario, error) {
	if name == selftestHang.Name {
		return selftestHang, nil
	}
	if i := slices.IndexFunc(others, func(s Scenario) bool { return s.Name == name }); i >= 0 {
		return others[i], nil
	}
	if of, ok := strings.CutPrefix(name, limitsPrefix); ok && !strings.ContainsAny(of, "*?[") {
		c, err := ParseCase(of)
		return c.Scenario(), err
	}
	return Scenario{}, fmt.Errorf("%q matches no scenario; --list shows them", name)
}

// hasHost says whether any of the scenarios makes a host of that kind.
func hasHost(ss []Scenario, host string) bool {
	return slices.ContainsFunc(ss, func(s Scenario) bool { return slices.Contains(s.Hosts, host) })
}

// program is one that scenarios run, and the Debian package that has it.
type program struct{ name, pkg string }

// find returns the program's path: those of administrators are not on everybody's
// PATH.
func (p program) find() (string, error) {
	path, err := exec.LookPath(p.name)
	for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
		if err != nil {
			if at, e := exec.LookPath(dir + p.name); e == nil {
				return at, nil
			}
		}
	}
	return path, err
}

// programsOf are the programs that the scenarios need.
func programsOf(ss []Scenario) []program {
	ps := []program{{"fio", "fio"}}
	if hasHost(ss, ISCSITCP) {
		ps = append(ps, program{"iscsistart", "open-iscsi"})
	}
	return ps
}

// modulesOf are the modules that the scenarios need, to be loaded at first and
// when a scenario comes.
func modulesOf(ss []Scenario) (load, carry []string) {
	load = []string{"sd_mod"}
	if hasHost(ss, TCMLoop) {
		load = append(load, "configfs", "target_core_user", "tcm_loop")
	}
	if hasHost(ss, SCSIDebug) {
		carry = append(carry, "scsi_debug")
	}
	if hasHost(ss, ISCSITCP) {
		load = append(load, "iscsi_tcp")
	}
	for _, h := range []string{AHCI, ATAPIIX} {
		if hasHost(ss, h) {
			carry = append(carry, h)
		}
	}
	if hasHost(ss, VirtIOSCSI) {
		load = append(load, "virtio_scsi")
	}
	return load, carry
}
