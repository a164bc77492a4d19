package lun

// Path is the way that a command came, for a unit that breaks it on purpose.
// A transport that has nothing to break leaves [Command.Path] nil.
type Path interface {
	// Drop breaks the link that the command came by, as if its cable were cut.
	// It doesn't wait for what ends with it, as the command itself is among
	// that. The command goes on, and its answer gets lost if the transport has no
	// way to send it once more. Drop returns false if this transport has no such
	// link.
	//
	// It is called while the command executes, by the goroutine that does.
	Drop(l Link) bool
}

// Link is something between an initiator and a unit that can break.
type Link uint8

const (
	// ConnectionLink is the connection that the command came by; the session may
	// have others.
	ConnectionLink Link = iota

	// SessionLink is the session, with all its connections.
	SessionLink

	// RingLink is a ring in memory that is shared with a kernel.
	RingLink
)
