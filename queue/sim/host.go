package sim

import (
	"fmt"
	"slices"
	"strings"

	"lunlab/queue"
)

const (
	// MaxDevices is the most devices a host has here.
	MaxDevices = 64
	minCPUs    = 2
)

// ATA says how a host's devices are ATA devices.
type ATA int

const (
	NoATA ATA = iota
	// OwnHost: libata is the host's driver (AHCI).
	OwnHost
	// SASHost: the driver is libsas's, and the devices are SATA ones.
	SASHost
)

var ataNames = []string{"none", "own-host", "sas-host"}

// MarshalText gives a name: "none", "own-host" or "sas-host".
func (a ATA) MarshalText() ([]byte, error) { return []byte(ataNames[a]), nil }

// UnmarshalText takes what MarshalText gives.
func (a *ATA) UnmarshalText(name []byte) error {
	i := slices.Index(ataNames, string(name))
	if i < 0 {
		return fmt.Errorf("sim: ata %q: want one of %s", name, strings.Join(ataNames, ", "))
	}
	*a = ATA(i)
	return nil
}

// Host is a SCSI host with its driver.
type Host struct {
	// Name is short and stable, for flags and reports.
	Name  string `json:"name"`
	Title string `json:"title"`
	// Limits are the driver's by default.
	Limits queue.Limits `json:"limits"`
	// TargetCanQueue is the most commands of one target; 0: no limit.
	TargetCanQueue int `json:"target_can_queue,omitempty"`
	ATA            ATA `json:"ata,omitempty"`
	// Tracks is track_queue_depth: TASK SET FULL lowers the depth.
	Tracks bool `json:"track_queue_depth,omitempty"`
	// Aborts says that the driver aborts a command that timed out; without it,
	// the error handler gets it at once.
	Aborts bool `json:"aborts,omitempty"`
	// Note says where the limits are from, if not from the driver's source.
	Note string `json:"note,omitempty"`
}

func (h Host) maxHostBlocked() int {
	if h.ATA == OwnHost {
		return 1
	}
	return 7 // SCSI_DEFAULT_HOST_BLOCKED
}

func limits(queues, canQueue, cmdPerLUN int, edits ...func(*queue.Limits)) queue.Limits {
	l := queue.Limits{HWQueues: queues, CanQueue: canQueue, CmdPerLUN: cmdPerLUN}
	for _, e := range edits {
		e(&l)
	}
	return l
}

func hostTagset(l *queue.Limits) { l.HostTagset = true }
func needsToken(l *queue.Limits) { l.NeedsBudgetToken = true }
func clamps(l *queue.Limits)     { l.ClampsDepth = true }
func configures(depth int) func(*queue.Limits) {
	return func(l *queue.Limits) { l.Configures, l.ConfiguredDepth = true, depth }
}

// The limits are those of linux 6.12's drivers, at their parameters' defaults.
var hosts = []Host{
	{Name: "tcm_loop", Title: "target core's loopback", Limits: limits(1, 1024, 1024), Tracks: true, Aborts: true},
	{Name: "tcm_loop-8192", Title: "tcm_loop with can_queue and cmd_per_lun 8192", Limits: limits(1, 8192, 8192), Tracks: true, Aborts: true},
	{Name: "virtio_scsi", Title: "virtio-scsi with 4 queues", Limits: limits(4, 256, 128, clamps), Tracks: true, Aborts: true,
		Note: "the device says: QEMU's virtqueue_size and cmd_per_lun"},
	{Name: "iscsi_tcp", Title: "iSCSI, a host for each session", Limits: limits(1, 113, 32, configures(0)), TargetCanQueue: 113, Tracks: true, Aborts: true,
		Note: "cmds_max 128, less 15 for the session itself"},
	{Name: "scsi_debug", Title: "scsi_debug", Limits: limits(1, 192, 192, configures(0)), Tracks: true, Aborts: true},
	{Name: "scsi_debug-hmq", Title: "scsi_debug with host_max_queue=64 and 2 queues", Limits: limits(2, 64, 64, hostTagset, configures(0)), Tracks: true, Aborts: true},
	{Name: "ufs", Title: "UFS with one queue", Limits: limits(1, 31, 31, configures(0)), Tracks: true, Aborts: true,
		Note: "32 transfer requests, one of them reserved"},
	{Name: "ahci", Title: "AHCI with an NCQ drive", Limits: limits(1, 32, 1, configures(32), needsToken), ATA: OwnHost},
	{Name: "ata_piix", Title: "an ATA host without NCQ", Limits: limits(1, 1, 1, configures(1), needsToken), ATA: OwnHost},
	{Name: "mvsas", Title: "libsas: Marvell 6440, SATA drives", Limits: limits(1, 508, 64, configures(32)), ATA: SASHost, Tracks: true, Aborts: true},
	{Name: "hisi_sas", Title: "libsas: HiSilicon v3, SATA drives", Limits: limits(16, 4000, 4000, hostTagset, configures(32)), ATA: SASHost, Aborts: true,
		Note: "16 completion queues"},
	{Name: "libsas-32", Title: "libsas: a host with 32 tags, SATA drives", Limits: limits(1, 32, 32, configures(32)), ATA: SASHost, Aborts: true,
		Note: "no driver in the kernel: the smallest that a drive's 32 slots fill"},
	{Name: "libsas-2q", Title: "libsas: 2 hardware queues without host-wide tags, SATA drives", Limits: limits(2, 32, 32, configures(32)), ATA: SASHost, Aborts: true,
		Note: "no driver in the kernel: what would share command slots"},
	{Name: "mpt3sas", Title: "mpt3sas, SAS3.5, SAS drives", Limits: limits(8, 8192, 128, hostTagset, configures(254)), Tracks: true, Aborts: true,
		Note: "can_queue is the firmware's; 8,192 and 8 reply queues are taken here"},
	{Name: "mpi3mr", Title: "mpi3mr", Limits: limits(8, 8192, 128, hostTagset, configures(128)), Tracks: true, Aborts: true,
		Note: "can_queue and the drive's depth are the firmware's; 8,192, 128 and 8 reply queues are taken here"},
}

// Hosts returns the presets.
func Hosts() []Host { return slices.Clone(hosts) }

// LookupHost returns the preset of that name, in any case. Its error lists the
// names there are.
func LookupHost(name string) (Host, error) {
	names := make([]string, 0, len(hosts))
	for _, h := range hosts {
		if strings.EqualFold(h.Name, name) {
			return h, nil
		}
		names = append(names, h.Name)
	}
	return Host{}, fmt.Errorf("sim: no host named %q: there are %s", name, strings.Join(names, ", "))
}
