package lun

// Unit is a logical unit: all that a transport needs of one. [Disk] is the one
// that comes with this package; an ATA drive behind a translation layer is
// another, and a wrapper that counts, delays or fails commands a third.
//
// All methods are safe for concurrent use.
type Unit interface {
	// Execute runs a command to its end and stores the answer in it. It may
	// block when the unit is [Unit.Blocking], else it returns without waiting
	// for anything but memory.
	//
	// Execute answers every CDB of any length and content with a status that
	// the standards allow; it never panics on what an initiator sent.
	Execute(c *Command)

	// DataLength says how many bytes of data-out and data-in the CDB moves at
	// the most, so that a transport can bound its buffers before the data is
	// there. A CDB that will be refused moves none.
	DataLength(cdb []byte) (out, in uint64)

	// Blocking tells whether Execute may sleep (on a disk, a network, a fault
	// that was asked for). A transport runs such commands on their own
	// goroutine, the others where it received them. It may change while commands
	// come: the transport asks once for each, and keeps to that.
	Blocking() bool

	// Notify tells the unit what befell it or a nexus. It may block when
	// Execute may.
	Notify(n *Nexus, e Event)
}

// Event is something that happens to a unit apart from its commands
// (SAM-5 6.3).
type Event uint8

const (
	// LogicalUnitReset is the task management function: every nexus gets a
	// unit attention. The nexus it came by, if any, is passed along.
	LogicalUnitReset Event = iota

	// HardReset is the same for the whole target device.
	HardReset

	// NexusLoss says that the nexus is gone for good.
	NexusLoss

	// CommandsCleared says that the commands of other nexuses were aborted by
	// CLEAR TASK SET or a PREEMPT AND ABORT that came by this one.
	CommandsCleared

	// LUNsChanged says that the target's LUN inventory has changed
	// (REPORTED LUNS DATA HAS CHANGED, SPC-5 6.33): for the nexus that comes with
	// it, or without one for all.
	LUNsChanged

	// LUNsReported says that the nexus that comes with it knows of that: REPORTED LUNS
	// DATA HAS CHANGED, if pending, is no longer. A nexus that the unit hasn't heard
	// from remains so.
	LUNsReported

	// NexusReset says that the nexus was lost and is there again at once, by the
	// I_T NEXUS RESET task management function.
	NexusReset

	// CommandsLost says that commands of this nexus were aborted by another one,
	// and not answered.
	CommandsLost
)

// Waiter is a Unit that isn't [Unit.Blocking], but for some commands.
type Waiter interface {
	// Waits tells whether Execute of this CDB may hold its caller up for long.
	Waits(cdb []byte) bool
}

// Waits tells whether u, or what it wraps, may sleep over a command. A transport
// that executes commands where it received them asks before it does.
func Waits(u Unit, cdb []byte) bool {
	if u.Blocking() {
		return true
	}
	for {
		if w, ok := u.(Waiter); ok {
			return w.Waits(cdb)
		}
		w, ok := u.(Wrapper)
		if !ok {
			return false
		}
		u = w.Unwrap()
	}
}
