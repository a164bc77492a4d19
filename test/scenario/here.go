package scenario

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Refusals says why the scenarios can't be carried out on the running kernel, each
// with what would help; none if they can.
func Refusals(ss []Scenario) []error {
	var no []error
	refuse := func(format string, args ...any) { no = append(no, fmt.Errorf(format, args...)) }
	if os.Geteuid() != 0 {
		refuse("not root: run it with sudo, or without --here, in a guest")
	}
	for _, s := range ss {
		if h := machineOf(s); h != "" {
			refuse("%s needs a guest with %s, which QEMU has: run it without --here", s.Name, h)
		}
	}
	for _, p := range programsOf(ss) {
		if _, err := exec.LookPath(p.name); err != nil {
			refuse("no %s: apt-get install %s", p.name, p.pkg)
		}
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		refuse("the kernel has no BTF, which the probe reads structures by: CONFIG_DEBUG_INFO_BTF=y")
	}
	load, carry := modulesOf(ss)
	for _, m := range append(load, carry...) {
		// The first come with the rest, and virtio_scsi hosts are skipped here.
		if !slices.Contains([]string{"sd_mod", "configfs", "virtio_scsi"}, m) && !haveModule(m) {
			refuse("the kernel has no %s, neither loaded, built in nor as a module that modprobe finds", m)
		}
	}
	if hosts, _ := filepath.Glob("/sys/bus/pseudo/drivers/scsi_debug/adapter*"); hasHost(ss, SCSIDebug) && len(hosts) > 0 {
		refuse("scsi_debug is loaded already and has %d hosts: it is loaded with other parameters for each case, so remove it first: modprobe -r scsi_debug", len(hosts))
	}
	return no
}

func haveModule(name string) bool {
	if _, err := os.Stat("/sys/module/" + name); err == nil {
		return true
	}
	out, err := exec.Command("modprobe", "-n", "-v", name).CombinedOutput()
	return err == nil && (strings.Contains(string(out), name) || len(out) == 0)
}
