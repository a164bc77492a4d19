// Package lab reads lab.yaml: which LUNs there are, on which targets, and what
// they lie on. It knows nothing of how a LUN gets to a kernel; the sections for
// the transports are theirs to read.
//
// [Load] checks a file without touching what it names, and [Config.Build] opens
// it.
package lab

import (
	_ "embed"
	"time"

	"lunlab/lun"
	"lunlab/lun/fault"
)

// Example is a lab.yaml that shows every key, with comments.
//
//go:embed example.yaml
var Example []byte

// Config is the content of a lab.yaml, complete and consistent. Zero values are
// things that were left out.
type Config struct {
	// Path is where it was read, for messages.
	Path string

	ISCSI   ISCSI
	Targets []*Target
}

// ISCSI holds what concerns all iSCSI targets.
type ISCSI struct {
	Listen        []string // ADDRESS:PORT
	DiscoveryCHAP *CHAP    // nil: discovery without authentication
	ISNS          *ISNS    // nil: the targets are registered nowhere
}

// Target is a set of LUNs that share limits: a SCSI host of tcm_loop, an iSCSI
// target, a virtio-scsi device.
type Target struct {
	Name   string
	Limits Limits
	Loop   Loop
	ISCSI  ISCSITarget
	LUNs   []*LUN
}

// Limits are a host's limits. 0 leaves the choice to the transport.
type Limits struct {
	CanQueue  int // commands that the host takes at once, 1 to 10240
	CmdPerLUN int // a LUN's queue depth at first, 1 to 10240
	HWQueues  int // hardware queues, 1 to 4096
}

// Loop is for tcm_loop. The names are "naa." and 16 hexadecimal digits.
type Loop struct {
	WWN       string
	Initiator string
}

// ISCSITarget is for iSCSI.
type ISCSITarget struct {
	Name     string // iqn. or naa. or eui.
	Alias    string
	Access   []Access  // empty: anyone
	Redirect *Redirect // nil: nowhere
}

// LUN describes a logical unit. For the meaning of most fields see
// [lunlab/lun.DiskOptions].
type LUN struct {
	Number int // 0 to 255
	Store  Store

	BlockSize        int
	PhysicalExponent uint8
	LowestAligned    uint16
	Vendor           string
	Product          string
	Revision         string
	Serial           string
	NAA              []byte
	Thin             bool
	UnmapBy          lun.Unmapping
	Protectable      bool
	Protection       uint8
	ReadOnly         bool
	WriteThrough     bool
	Removable        bool
	RotationRate     uint16
	MaxTransfer      uint64 // in bytes, up to 32 MiB
	EraseTime        time.Duration
	Faults           []*fault.Rule // in force from the beginning

	at pos
}

// StoreKind says what a LUN lies on.
type StoreKind string

const (
	Memory StoreKind = "mem"
	File   StoreKind = "file"
	Null   StoreKind = "null"
)

// Store is what a LUN lies on.
type Store struct {
	Kind   StoreKind
	Size   int64  // in bytes; 0 for a file: as large as it is
	Limit  int64  // of a memory store: bytes that it may take, 0 for no limit
	Path   string // of a file, absolute or from the working directory
	Direct bool   // of a file: past the page cache

	at pos
}

// pos is a place in the file, both from 1.
type pos struct{ line, column int }
