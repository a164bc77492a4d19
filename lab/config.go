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
	Pools   []*Pool
	Targets []*Target
}

// Pool is memory that the thin LUNs of several stores share.
type Pool struct {
	Name      string
	Size      int64 // in bytes, the hard threshold
	Temporary bool  // see Store
}

// ISCSI holds what concerns all iSCSI targets.
type ISCSI struct {
	Listen        []Portal
	ISNS          *ISNS // nil: the targets are registered nowhere
	DiscoveryCHAP *CHAP // nil: discovery without authentication
}

// Portal is an address to listen on, as a member of a portal group.
type Portal struct {
	Address string // ADDRESS:PORT
	Group   uint16 // its tag, 1 to 65535, which is also the relative target port identifier
}

// Target is a set of LUNs that share limits: a SCSI host of tcm_loop, an iSCSI
// target, a virtio-scsi device.
type Target struct {
	Name      string
	Limits    Limits
	Loop      Loop
	ISCSI     ISCSITarget
	VhostUser VhostUser
	ALUA      *ALUA // of LUNs that have none of their own; nil: all ports are alike
	LUNs      []*LUN
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

	// PortalGroups are those by which it is reached. Empty: all.
	PortalGroups []uint16
}

// LUN describes a logical unit. For the meaning of most fields see
// [lunlab/lun.DiskOptions]. Of that, Copies, LUN and AbortTasks have no key: they
// follow from the target that the LUN is on.
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
	EUI              []byte
	Thin             bool
	UnmapBy          lun.Unmapping
	Unzeroed         bool
	SoftThreshold    int64 // in bytes
	Protectable      bool
	Protection       uint8
	ReadOnly         bool
	WriteThrough     bool
	Removable        bool
	RotationRate     uint16
	FormFactor       uint8
	Streams          uint8
	Zones            *Zones // nil: not zoned
	ALUA             *ALUA  // nil: the target's
	State            string // path of the file that keeps what outlives a restart, "": nothing does
	MaxTransfer      uint64 // in bytes, up to 32 MiB
	EraseTime        time.Duration
	ShortCommands    bool
	ATA              *ATA          // nil: it is a disk
	Faults           []*fault.Rule // in force from the beginning

	at pos
}

// StoreKind says what a LUN lies on.
type StoreKind string

const (
	Memory StoreKind = "mem"
	File   StoreKind = "file"
	Null   StoreKind = "null"
	NBD    StoreKind = "nbd"
)

// Zones divide a LUN into zones. Sizes are in bytes. See [lunlab/lun.ZoneOptions].
type Zones struct {
	Size         int64
	Conventional int
	MaxOpen      int
	HostAware    bool

	at pos
}

// Store is what a LUN lies on.
type Store struct {
	Kind  StoreKind
	Size  int64 // in bytes; 0 for a file or an NBD export: as large as it is
	Cache int64 // bytes of a volatile cache in front of it, 0 for none

	// Of a memory store.
	Limit     int64  // bytes that it may take, the hard threshold; 0 for no limit
	Temporary bool   // writes beyond that are to be repeated, since there will be more
	Pool      string // the pool that they are taken from, "" for none

	// Of a file.
	Path   string // absolute or from the working directory
	Direct bool   // past the page cache

	// Of an NBD export. See [lunlab/lun/store/nbd.Options].
	Address     string
	Connections int
	Timeout     time.Duration
	Reconnect   time.Duration
	TLS         *TLS // nil: what the system trusts

	at pos
}

// TLS says whom a connection to an NBD server trusts. They are paths of PEM files.
type TLS struct {
	CA         string // "": what the system trusts
	Cert, Key  string // our own, "" for none
	ServerName string // "": the host of the address
}

// pos is a place in the file, both from 1.
type pos struct{ line, column int }
