package iscsi

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Access lets initiators use a target.
type Access struct {
	// Initiator is a pattern for initiator names as path.Match reads it, without
	// regard to case: "iqn.2026-01.example.host:*". Empty means any.
	Initiator string

	// LUNs are those that the initiators see. nil means all.
	LUNs []uint16

	// CHAP is how they prove who they are. nil means not at all.
	CHAP *CHAP
}

// Redirect sends initiators to another portal (RFC 7143 11.13.5, status class 1).
type Redirect struct {
	// Address is host:port, an IPv6 host in brackets.
	Address   string
	Permanent bool
}

// in tells whether the target can be reached by the portals of a group.
func (t *Target) in(group uint16) bool {
	return len(t.PortalGroups) == 0 || slices.Contains(t.PortalGroups, group)
}

// anyone is the access of a target that has no list.
var anyone = Access{}

// accessFor finds the first entry that an initiator matches, nil if it matches
// none and isn't to be let in.
func (t *Target) accessFor(initiator string) *Access {
	if len(t.Access) == 0 {
		return &anyone
	}
	for i := range t.Access {
		if a := &t.Access[i]; a.matches(initiator) {
			return a
		}
	}
	return nil
}

func (a *Access) matches(initiator string) bool {
	if a.Initiator == "" {
		return true
	}
	ok, err := path.Match(strings.ToLower(a.Initiator), strings.ToLower(initiator))
	return ok && err == nil
}

// sees tells whether a session may see a logical unit.
func (x *session) sees(n uint16) bool {
	a := x.access.Load()
	return a.LUNs == nil || slices.Contains(a.LUNs, n)
}

func (a *Access) check() error {
	if _, err := path.Match(a.Initiator, ""); err != nil {
		return fmt.Errorf("initiator pattern %q: %w", a.Initiator, err)
	}
	if a.CHAP != nil {
		return a.CHAP.check()
	}
	return nil
}
