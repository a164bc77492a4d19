package scenario

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lunlab/queue"
	"lunlab/test/kernel"
)

// The hosts that QEMU emulates and libata drives, each with a disk of QEMU's.
// A guest has them from the start, so that a scenario with one has a guest of
// its own.
const (
	AHCI    = "ahci"     // the board's own, one port in use
	ATAPIIX = "ata_piix" // an IDE controller beside it: can_queue 1
)

// ataLimits are the limits that libata gives a disk of the host; its cmd_per_lun is
// 0, which the kernel takes as 1.
var ataLimits = map[string]queue.Limits{
	AHCI:    {HWQueues: 1, CanQueue: 32, Configures: true, ConfiguredDepth: 32, NeedsBudgetToken: true, KeepsDepth: true},
	ATAPIIX: {HWQueues: 1, CanQueue: 1, Configures: true, NeedsBudgetToken: true, KeepsDepth: true},
}

// ataScenario is what a limits scenario is, with libata's limits.
func ataScenario(host string) Scenario {
	s := Case{host, ataLimits[host]}.Scenario()
	s.Name = "ata/" + host
	return s
}

// machineOf is the kind of host among the scenario's that QEMU has to emulate,
// or "" if it needs none.
func machineOf(s Scenario) string {
	for _, h := range s.Hosts {
		if _, ok := ataLimits[h]; ok {
			return h
		}
	}
	return ""
}

// withMachine adds the host and its disk, whose blocks are in dir, to the guest.
// The disk is slow, so that as many commands are in flight as the kernel lets be.
func withMachine(cfg kernel.Config, host, dir string) (kernel.Config, error) {
	var bus []string
	switch host {
	case "":
		return cfg, nil
	case AHCI:
		bus = []string{"-device", "ide-hd,drive=ata,bus=ide.0"}
	case ATAPIIX:
		bus = []string{"-device", "piix3-ide,id=piix", "-device", "ide-hd,drive=ata,bus=piix.0"}
	}
	image := filepath.Join(dir, "ata.img")
	f, err := os.OpenFile(image, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return cfg, err
	}
	defer f.Close()
	if err := f.Truncate(diskSize); err != nil {
		return cfg, err
	}
	drive := "if=none,id=ata,format=raw,cache=unsafe,throttling.iops-total=1000,file=" + strings.ReplaceAll(image, ",", ",,")
	cfg.QEMUArgs = slices.Concat(cfg.QEMUArgs, []string{"-drive", drive}, bus)
	return cfg, nil
}

// attachATA waits for the disk of the host, whose driver may be a module.
func attachATA(ctx context.Context, host string) (*disk, error) {
	if err := modprobe(ctx, host); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, 30*time.Second, fmt.Errorf("no disk of %s came", host))
	defer cancel()
	for {
		hosts, _ := filepath.Glob("/sys/class/scsi_host/host*/proc_name")
		for _, h := range hosts {
			if b, err := os.ReadFile(h); err != nil || strings.TrimSpace(string(b)) != host {
				continue
			}
			blocks, _ := filepath.Glob(filepath.Dir(h) + "/device/target*/*:*:*:*/block/*")
			for _, b := range blocks {
				d := &disk{name: filepath.Base(b), device: filepath.Base(filepath.Dir(filepath.Dir(b))), remove: func() error { return nil }}
				if _, err := os.Stat(d.path()); err == nil {
					return d, nil
				}
			}
		}
		if err := sleep(limited, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}
