// Package fault makes logical units fail on purpose: [Unit] is a [lun.Unit] in
// front of another that follows rules about which commands fail, and how.
//
// A [Rule] says which commands it is about, and what becomes of them. It has a
// text, which [Parse] reads:
//
//	cmd=read lba=1000-1999 medium-error
//	cmd=write every=100 delay=normal:20ms,5ms
//	above=8 status=task-set-full
//
// The rules of a unit are looked at in the order in which they were added. Delays,
// drops, short and corrupt data add up; the first rule that decides a command's
// answer is the last to be looked at.
//
// It works on every transport. What a transport has to offer is small: it cancels
// the commands that are aborted ([lun.Command.Cancel]), and lets the link break
// that one came by ([lun.Path]).
package fault

import (
	"time"

	"lunlab/lun"
)

// Rule is a fault: which commands it befalls, and what it is. The zero value of a
// condition is one that all commands meet.
type Rule struct {
	// Text is what [Parse] read. Two rules of the same text are the same.
	Text string

	// Commands are those that the rule is about.
	Commands []Command

	// Blocks, if not nil, is the range that a command has to touch, be it with one
	// block.
	Blocks *Blocks

	// Initiator is a pattern, as [path.Match] reads it, for the initiator's name: its
	// iSCSI name, or naa. and the SAS address of a tcm_loop port.
	Initiator string

	// Above is how many commands have to be in flight in this unit besides this one.
	Above int

	// After and For are the time that the rule is in force, from when it was added.
	After, For time.Duration

	// Nth is which one of the commands that meet all of the above the rule is about,
	// Every that it is about one in so many, the last of them, Probability that it is
	// about each with that chance, above 0 up to 1.
	Nth, Every  uint64
	Probability float64

	// Seed is what chances and random delays come from: the same seed gives the same
	// ones to the same commands in the same order.
	Seed uint64

	// Count is how many commands the rule befalls at the most.
	Count uint64

	// Delay is how long the command waits before anything else becomes of it.
	Delay Delay

	// Act is what becomes of it.
	Act Act

	Status     lun.Status // of [Answer]
	Sense      lun.Sense  // of [Answer] with CHECK CONDITION; of [Attention] the Code
	InfoLBA    bool       // Sense.Info is the first block that the rule is about
	Descriptor bool       // the sense data is in the descriptor format
	Execute    bool       // [Answer], [Never]: the command is executed all the same

	Short   uint64      // bytes, of [Short]
	Corrupt *Corruption // of [Corrupt]
	Link    lun.Link    // of [Drop]
}

// Act is what becomes of a command.
type Act uint8

const (
	// None leaves it at the delay.
	None Act = iota

	// Answer answers with a status, and sense data, of the rule's. Without Execute,
	// that is all that happens; a write that is answered so with GOOD is lost. With
	// InfoLBA, the blocks before the one that is named are transferred, as they are by
	// a drive.
	Answer

	// Never never answers. The command ends when it is aborted, by whatever does:
	// a task management function, the end of its session.
	Never

	// AnswerAfterAbort executes and answers the command when it was aborted, as if
	// the abort had come a moment too late.
	AnswerAfterAbort

	// Short says that only the first bytes were transferred: there is a residual.
	Short

	// Corrupt changes the data: what a write writes, what anything else returns.
	Corrupt

	// MediumError makes the range unreadable: commands that read it end with MEDIUM
	// ERROR, UNRECOVERED READ ERROR and the first bad block's address. Blocks that are
	// written are good again.
	MediumError

	// Attention establishes a unit attention condition for every nexus that was seen
	// since the rule was added; this command reports it. INQUIRY and REQUEST SENSE
	// don't meet the rule (SAM-5 5.14).
	Attention

	// Drop breaks the link that the command came by. The command is executed.
	Drop

	// Stall holds up this command and all that come, whatever they are, until the
	// rule is removed or its time is over.
	Stall
)

// Command says which commands are meant.
type Command struct {
	Code   uint8
	Action int32 // service action, -1: any or none
}

// Blocks is a range of logical blocks.
type Blocks struct {
	First, Last uint64
}

// Corruption says which bytes are changed, and how.
type Corruption struct {
	// Offset is the first one, in the data, or in the first block that the rule is
	// about if it has a range and the command transfers blocks. Length is how many.
	Offset, Length uint64

	// Set makes the bytes Value; without it, the bits that Value has are flipped.
	Set   bool
	Value byte
}

// waits tells whether commands may wait for the rule, or have to run beside others
// to meet it.
func (r *Rule) waits() bool {
	return r.Delay != nil || r.Act == Never || r.Act == AnswerAfterAbort || r.Act == Stall || r.Above > 0
}

// maxTime bounds every time that a rule has.
const maxTime = 24 * time.Hour
