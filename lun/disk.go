package lun

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"lunlab/lun/store"
)

// DiskOptions say what kind of disk to make. The zero value is a thick 512-byte
// disk with a volatile write cache and an identity of its own.
type DiskOptions struct {
	// BlockSize is the logical block length in bytes, 512 or 4096. 0 is 512.
	BlockSize int

	// PhysicalExponent says that 2^n logical blocks make a physical one, 0 to 15.
	// LowestAligned is the first logical block that begins a physical one.
	PhysicalExponent uint8
	LowestAligned    uint16

	// Vendor, Product and Revision are up to 8, 16 and 4 characters of ASCII.
	// "" is LUNLAB, "disk" or the version.
	Vendor, Product, Revision string

	// Serial is the unit serial number, up to 64 characters of ASCII. "" makes
	// up a new one, so that no two disks are taken for paths to the same.
	Serial string

	// NAA is the designator that the unit is known by in the world: 8 bytes that
	// begin with NAA 2, 3 or 5, or 16 that begin with NAA 6. Empty derives one
	// of NAA 3 (locally assigned) from Serial.
	NAA []byte

	// EUI is a further designator, an EUI-64 based one of 8, 12 or 16 bytes. Empty
	// is none.
	EUI []byte

	// Thin makes the disk thin provisioned (UNMAP and all that). The store has
	// to be a [store.Sparse].
	Thin bool

	// SoftThreshold is how many bytes of the room of a thin disk's store, if that
	// is limited (see [store.Pool]), are taken when every initiator is told so. 0
	// is none. Initiators can change it.
	SoftThreshold int64

	// UnmapBy says by which commands a thin disk unmaps. 0 is all of them.
	UnmapBy Unmapping

	// Unzeroed keeps a thin disk from saying that unmapped blocks read as zeros
	// (LBPRZ). They do all the same.
	Unzeroed bool

	// Protectable makes room for protection information, 8 bytes in the store
	// for each block, and lets FORMAT UNIT choose a type of it. Protection is the
	// type at first, 1 to 3, or 0 for none.
	Protectable bool
	Protection  uint8

	// Streams is how many permanent streams there are, 2 to 64. 0 is none.
	Streams uint8

	// Zones makes it a zoned disk. nil is one that isn't.
	Zones *ZoneOptions

	// PortGroups are the target port groups of asymmetric access. None is a disk
	// whose ports are all alike. ExplicitAccess lets initiators change their
	// states with SET TARGET PORT GROUPS.
	PortGroups     []PortGroup
	ExplicitAccess bool

	// Ports are the relative target port identifiers by which the disk can be reached,
	// as far as PortGroups doesn't have them: a persistent reservation may be moved to
	// one that no initiator has come by yet.
	Ports []uint16

	// ReadOnly refuses writes with WRITE PROTECTED, as is done over a store that
	// is read-only anyway.
	ReadOnly bool

	// WriteThrough turns the write cache off at first: a write is durable when
	// its status comes. Else it is when it was flushed or had FUA set.
	WriteThrough bool

	// Removable says that the medium can be ejected and loaded again.
	Removable bool

	// RotationRate is the medium rotation rate per minute. 0 and 1 are for a
	// medium that doesn't turn.
	RotationRate uint16

	// FormFactor is the nominal form factor of SBC-4 6.6.2: 1 to 5 for 5.25, 3.5,
	// 2.5, 1.8 and less than 1.8 inches. 0 is 2 for a medium that turns, and else
	// not reported.
	FormFactor uint8

	// MaxTransfer is the most blocks that a command may transfer. 0 is 8 MiB of
	// them.
	MaxTransfer uint32

	// ShortCommands leaves out the commands of 32 bytes, which not every host can
	// send.
	ShortCommands bool

	// EraseTime is how long FORMAT UNIT and SANITIZE take at the least, for an
	// initiator that is to see them in progress. A disk with one is Blocking.
	EraseTime time.Duration

	// Copies is the disks that third-party copies can reach from this one, which
	// joins them until its Close. nil is this disk alone. LUN is the number that the
	// disk has among them, by which [Nexus.Sees] knows it.
	Copies *CopySet
	LUN    uint16

	// Memory is where the disk keeps what has to outlive a restart. Without one,
	// saved mode pages last as long as the disk, and APTPL isn't offered.
	Memory Memory

	// AbortTasks is called for each nexus that a PREEMPT AND ABORT removes: its
	// tasks for this unit are to be aborted, except the one that asks for it.
	// It may be nil, and must not execute commands on this disk.
	AbortTasks func(*Nexus)
}

// Disk is a direct access block device (SBC-4) over a [store.Store].
//
// READ and WRITE take locks for the blocks that they touch only, so as not to
// tear a COMPARE AND WRITE, and allocate nothing. What else there is of state
// is under mu, with atomic copies of what READ and WRITE need to know.
type Disk struct {
	opt     DiskOptions
	store   store.Store
	writeAt func(p []byte, off int64) (int, error) // the store's
	// writeDurable is nil for a store that is no store.DurableWriter.
	writeDurable func(p []byte, off int64) (int, error)
	sparse       store.Sparse // nil unless thin
	blocking     bool
	volatile     bool // the store is memory
	guarded      bool // the store is read-only
	table        *CommandTable
	long         [256]bool // operation codes of the class long
	locks        rangeLock

	nexuses atomic.Pointer[map[*Nexus]*nexus] // replaced, never changed, under mu
	state   atomic.Uint32                     // see ready.go

	shape atomic.Pointer[geometry]

	// settings takes the place of the same fields of opt. What it points to is
	// replaced, never changed.
	settings atomic.Pointer[Settings]

	cutting  sync.Mutex    // held by LosePower; before mu
	cuts     atomic.Uint32 // how often LosePower began and ended, under mu
	erasures atomic.Uint32 // FORMAT UNITs and SANITIZEs that have begun

	protectedAs atomic.Uint32 // see protectionType

	// Copies of mode page bits.
	writeBack, softProtect, descriptorSense atomic.Bool

	job        atomic.Pointer[job] // the last FORMAT UNIT or SANITIZE
	background sync.WaitGroup      // its goroutine
	closing    chan struct{}       // closed by Close

	bad      BlockSet // see spoiled
	anchored BlockSet // unmapped, with room of their own
	zones    *zones   // nil unless zoned
	pool     *pool    // nil unless the room is limited
	tasks    TaskControl
	power    powerState
	count    counters
	born     time.Time

	saving sync.Mutex // for Memory; before mu
	saved  []byte     // what it holds, under saving

	mu           sync.Mutex
	closed       bool
	pages        []*modePage
	reserve      reservations
	selfTests    []selfTest // the last first
	buffer, echo []byte     // of WRITE BUFFER
	microcode    bool       // some was downloaded and not activated
	identity     identifying
	clock        clock
	copies       []*copyOperation // the last first
	or           orState
	pending      *geometry // see choose
	rods         rodTokens // has a lock of its own
	groups       []portGroup
}

// NewDisk returns a disk whose blocks lie in s. What of s makes no whole block
// is left unused. The disk uses s until its Close, which closes s too.
func NewDisk(s store.Store, o DiskOptions) (*Disk, error) {
	d := &Disk{store: s, writeAt: s.WriteAt, volatile: !store.Blocking(s), guarded: store.ReadOnly(s), closing: make(chan struct{})}
	if w, ok := s.(store.DurableWriter); ok {
		d.writeDurable = w.WriteDurable
	}
	d.blocking = !d.volatile || o.EraseTime > 0
	d.born = time.Now()
	d.clock.at = d.born
	if err := d.setOptions(o); err != nil {
		return nil, fmt.Errorf("lun: %w", err)
	}
	g, err := d.newGeometry(s.Size(), uint64(d.opt.BlockSize), 0)
	if err != nil {
		return nil, fmt.Errorf("lun: %w", err)
	}
	d.shape.Store(g)
	d.protectedAs.Store(uint32(d.opt.Protection))
	if d.opt.Zones != nil {
		z, err := newZones(d, *d.opt.Zones)
		if err != nil {
			return nil, fmt.Errorf("lun: %w", err)
		}
		d.zones = z
		if err := d.recallZones(); err != nil {
			return nil, fmt.Errorf("lun: %w", err)
		}
	}
	if d.opt.Thin {
		sparse, ok := s.(store.Sparse)
		if !ok {
			return nil, errors.New("lun: thin provisioning needs a store that can unmap")
		}
		d.sparse = sparse
		d.pool = newPool(s)
	}
	d.nexuses.Store(&map[*Nexus]*nexus{})
	d.or.reset()
	d.groups = newPortGroups(d.opt.PortGroups)
	d.pages = newModePages(d)
	if err := d.recall(); err != nil {
		return nil, fmt.Errorf("lun: %w", err)
	}
	d.applyModes()
	d.table = newTable(d)
	for code, list := range d.table {
		for _, u := range list {
			d.long[code] = d.long[code] || u.Of.(*entry).class&long != 0
		}
	}
	if d.opt.Copies == nil {
		d.opt.Copies = new(CopySet)
	}
	d.opt.Copies.add(d)
	return d, nil
}

func (d *Disk) setOptions(o DiskOptions) error {
	if o.BlockSize == 0 {
		o.BlockSize = 512
	}
	if o.BlockSize != 512 && o.BlockSize != 4096 {
		return fmt.Errorf("block size %d is neither 512 nor 4096", o.BlockSize)
	}
	if o.PhysicalExponent > 15 {
		return fmt.Errorf("physical block exponent %d is above 15", o.PhysicalExponent)
	}
	if o.LowestAligned > 0x3fff {
		return fmt.Errorf("lowest aligned block %d is above 16383", o.LowestAligned)
	}
	if o.Serial == "" {
		o.Serial = strings.ToLower(rand.Text()[:16])
	}
	for _, f := range []struct {
		name  string
		value *string
		usual string
		most  int
	}{
		{"vendor", &o.Vendor, "LUNLAB", 8},
		{"product", &o.Product, "disk", 16},
		{"revision", &o.Revision, "0001", 4},
		{"serial number", &o.Serial, "", 64},
	} {
		if *f.value == "" {
			*f.value = f.usual
		}
		if len(*f.value) > f.most {
			return fmt.Errorf("%s %q is longer than %d", f.name, *f.value, f.most)
		}
		for _, r := range *f.value {
			if r < 0x20 || r > 0x7e {
				return fmt.Errorf("%s %q has more than printable ASCII", f.name, *f.value)
			}
		}
	}
	if len(o.NAA) == 0 {
		h := fnv.New64a()
		fmt.Fprintf(h, "%s\x00%s\x00%s", o.Vendor, o.Product, o.Serial)
		o.NAA = h.Sum(nil)
		o.NAA[0] = 0x30 | o.NAA[0]&0x0f
	}
	if naa := o.NAA[0] >> 4; !(len(o.NAA) == 8 && (naa == 2 || naa == 3 || naa == 5)) && !(len(o.NAA) == 16 && naa == 6) {
		return fmt.Errorf("NAA designator %s is neither 8 bytes of NAA 2, 3 or 5 nor 16 bytes of NAA 6", hex.EncodeToString(o.NAA))
	}
	if n := len(o.EUI); n != 0 && n != 8 && n != 12 && n != 16 {
		return fmt.Errorf("EUI-64 based designator %x has %d bytes, not 8, 12 or 16", o.EUI, n)
	}
	if o.FormFactor > 5 {
		return fmt.Errorf("form factor %d is above 5", o.FormFactor)
	}
	if o.FormFactor == 0 && o.RotationRate > 1 {
		o.FormFactor = 2
	}
	if o.Protection > 3 {
		return fmt.Errorf("protection type %d is above 3", o.Protection)
	}
	var err error
	if o.PortGroups, err = checkPortGroups(o.PortGroups); err != nil {
		return err
	}
	if o.Streams == 1 || o.Streams > maxStreams {
		return fmt.Errorf("there can't be %d streams, but 2 to %d or none", o.Streams, maxStreams)
	}
	o.Protectable = o.Protectable || o.Protection > 0
	if o.SoftThreshold < 0 {
		return fmt.Errorf("soft threshold %d is negative", o.SoftThreshold)
	}
	if o.UnmapBy == 0 {
		o.UnmapBy = unmappings
	}
	if o.UnmapBy&^unmappings != 0 {
		return fmt.Errorf("there is no way to unmap %#x", uint8(o.UnmapBy))
	}
	if o.RotationRate == 0 {
		o.RotationRate = 1
	}
	if o.MaxTransfer == 0 {
		o.MaxTransfer = 8 << 20 / uint32(o.BlockSize)
	}
	if uint64(o.MaxTransfer)*uint64(o.BlockSize) > math.MaxInt32 {
		return fmt.Errorf("%d blocks of %d bytes are too much for one transfer", o.MaxTransfer, o.BlockSize)
	}
	d.opt = o
	d.settings.Store(&Settings{o.Revision, o.ReadOnly, o.WriteThrough, o.SoftThreshold})
	return nil
}

// Options returns the disk's options, with all that was left to be chosen, and
// with the [Settings] that hold now.
func (d *Disk) Options() DiskOptions {
	return d.Settings().in(d.opt)
}

// Close ends what goes on in the background, makes what was written durable, and
// closes the store. Commands that run then, or come later, fail with HARDWARE
// ERROR.
func (d *Disk) Close() error {
	d.mu.Lock()
	if !d.closed {
		d.closed = true
		close(d.closing)
	}
	d.mu.Unlock()
	d.opt.Copies.remove(d)
	d.background.Wait()
	return errors.Join(d.store.Sync(), d.store.Close())
}

// Blocking implements [Unit].
func (d *Disk) Blocking() bool { return d.blocking }

// TaskControl implements [TaskController].
func (d *Disk) TaskControl() *TaskControl { return &d.tasks }

// Waits implements [Waiter]: some commands go on for long, or touch other disks.
func (d *Disk) Waits(cdb []byte) bool {
	return d.Blocking() || len(cdb) > 0 && d.long[cdb[0]]
}

// DataLength implements [Unit].
func (d *Disk) DataLength(cdb []byte) (out, in uint64) {
	e, s := d.find(cdb)
	if s.Key != NoSense || e.moves == nil {
		return 0, 0
	}
	return e.moves(d, cdb)
}

// Execute implements [Unit].
func (d *Disk) Execute(c *Command) {
	began := time.Since(d.born)
	d.count.usage.begin(began)
	c.counted = countedNot
	d.execute(c)
	ended := time.Since(d.born)
	d.count.usage.end(ended)
	if c.counted != countedNot {
		d.count.spent(c, ended-began)
	}
}

func (d *Disk) execute(c *Command) {
	c.Status = Good
	c.erasures = d.erasures.Load() // before state; see erase
	n := d.nexusOf(c.Nexus)
	e, s := d.find(c.CDB)
	if d.pool != nil {
		d.watchPool()
	}
	if n.pending.Load() && (e == nil || e.class&quiet == 0) {
		if a := d.takeAttention(n); a.Key != NoSense {
			d.fail(c, a)
			return
		}
	}
	if s.Key == NoSense && c.CDB[e.control]&naca != 0 && !d.normalACA() {
		s = InvalidField(e.control, 2)
	}
	if s.Key != NoSense {
		d.fail(c, s)
		return
	}
	if a := AccessState(n.access.Load()); a != ActiveOptimized {
		if s := accessDenied(a, e.class); s.Key != NoSense {
			d.fail(c, s)
			return
		}
	}
	if n.denied(e.class) {
		c.Status = ReservationConflict
		return
	}
	run, st := e.run, d.state.Load()
	if st != 0 {
		if s := d.admit(st, e, c.CDB); s.Key != NoSense {
			d.fail(c, s)
			return
		}
		if st&resting != 0 {
			run = e.awake
		}
	}
	cuts := d.cuts.Load()
	if unpowered(cuts) && e.class&quiet == 0 {
		// What it writes could be gone before it is flushed.
		d.fail(c, powerLost())
		return
	}
	if s := run(d, n, c); s.Key != NoSense {
		d.fail(c, s)
	} else if st&warning != 0 && c.Status == Good && e.class&quiet == 0 {
		d.warn(c)
	}
	if d.cuts.Load() != cuts && c.Status == Good {
		d.fail(c, powerLost())
	}
}

// fail ends the command with sense data. That of a RECOVERED ERROR was done all the
// same.
func (d *Disk) fail(c *Command, s Sense) {
	if s.Key != RecoveredError {
		c.InLen, c.OutLen = 0, 0
	}
	d.tell(c, s)
}

// tell gives the command sense data of the format that D_SENSE asks for.
func (d *Disk) tell(c *Command, s Sense) {
	if d.descriptorSense.Load() {
		c.FailDescriptor(s)
	} else {
		c.Fail(s)
	}
}

// protectable tells whether the disk can be formatted with protection
// information.
func (d *Disk) protectable() bool { return d.opt.Protectable }
