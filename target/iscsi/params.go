package iscsi

import (
	"slices"
	"strconv"
	"strings"
)

// Params are the operational parameters of a session and of one of its
// connections (RFC 7143 13), as they were negotiated.
type Params struct {
	MaxConnections      uint32
	InitialR2T          bool
	ImmediateData       bool
	MaxBurstLength      uint32
	FirstBurstLength    uint32
	DefaultTime2Wait    uint32 // seconds
	DefaultTime2Retain  uint32 // seconds
	MaxOutstandingR2T   uint32
	DataPDUInOrder      bool
	DataSequenceInOrder bool
	ErrorRecoveryLevel  uint32
	ISCSIProtocolLevel  uint32 `json:"iSCSIProtocolLevel"`
	TaskReporting       string

	// HeaderDigest and DataDigest say whether there is one, CRC32C. They are a
	// connection's own.
	HeaderDigest, DataDigest bool `json:"-"`

	// MaxRecvDataSegmentLength is the initiator's; TargetMaxRecvDataSegmentLength
	// is what the target has declared. Both are of a connection.
	MaxRecvDataSegmentLength       uint32 `json:"-"`
	TargetMaxRecvDataSegmentLength uint32
}

// defaultParams are those that hold until negotiated otherwise (RFC 7143 13).
func defaultParams() Params {
	return Params{
		MaxConnections:                 1,
		InitialR2T:                     true,
		ImmediateData:                  true,
		MaxBurstLength:                 262144,
		FirstBurstLength:               65536,
		DefaultTime2Wait:               2,
		DefaultTime2Retain:             20,
		MaxOutstandingR2T:              1,
		DataPDUInOrder:                 true,
		DataSequenceInOrder:            true,
		ISCSIProtocolLevel:             1,
		TaskReporting:                  reportRFC3720,
		MaxRecvDataSegmentLength:       8192,
		TargetMaxRecvDataSegmentLength: 8192,
	}
}

// offered are what this target is ready for: the bound or preference of each
// key that it negotiates.
func offered(maxConnections uint32) Params {
	return Params{
		MaxConnections:                 maxConnections,
		InitialR2T:                     false,
		ImmediateData:                  true,
		MaxBurstLength:                 1 << 20,
		FirstBurstLength:               256 << 10,
		DefaultTime2Wait:               0,
		DefaultTime2Retain:             60,
		MaxOutstandingR2T:              64,
		DataPDUInOrder:                 false,
		DataSequenceInOrder:            false,
		ErrorRecoveryLevel:             2,
		ISCSIProtocolLevel:             2,
		TargetMaxRecvDataSegmentLength: 256 << 10,
	}
}

// keyKind is how the value of a key is arrived at (RFC 7143 6.2).
type keyKind uint8

const (
	keyList    keyKind = iota // the first offered value that the target knows
	keyMin                    // the smaller number
	keyMax                    // the larger number
	keyOr                     // Yes if either says so
	keyAnd                    // Yes if both say so
	keyDeclare                // the initiator's word, not answered
	keyRefuse                 // always Reject
	keyNote                   // said for people to read, not answered
)

// key is what there is to know of one.
type key struct {
	kind   keyKind
	lo, hi uint32

	// leading keys are for the login of a session's first connection only;
	// login keys for every login, and never for full feature phase.
	leading, login bool

	// normal keys mean nothing in a discovery session.
	normal bool

	number func(*Params) *uint32
	truth  func(*Params) *bool

	// values are those that the target knows, and take stores the chosen one.
	values []string
	take   func(*Params, string)
}

var digestValues = []string{"CRC32C", "None"}

// keys are those that are negotiated in the operational stage or in full
// feature phase (RFC 7143 13, RFC 7144 8).
var keys = map[string]*key{
	"HeaderDigest": {kind: keyList, login: true, values: digestValues, take: func(p *Params, v string) { p.HeaderDigest = v == "CRC32C" }},
	"DataDigest":   {kind: keyList, login: true, values: digestValues, take: func(p *Params, v string) { p.DataDigest = v == "CRC32C" }},
	"MaxConnections": {kind: keyMin, lo: 1, hi: 65535, leading: true, normal: true,
		number: func(p *Params) *uint32 { return &p.MaxConnections }},
	"InitialR2T":    {kind: keyOr, leading: true, normal: true, truth: func(p *Params) *bool { return &p.InitialR2T }},
	"ImmediateData": {kind: keyAnd, leading: true, normal: true, truth: func(p *Params) *bool { return &p.ImmediateData }},
	"MaxRecvDataSegmentLength": {kind: keyDeclare, lo: 512, hi: 1<<24 - 1,
		number: func(p *Params) *uint32 { return &p.MaxRecvDataSegmentLength }},
	"MaxBurstLength": {kind: keyMin, lo: 512, hi: 1<<24 - 1, leading: true, normal: true,
		number: func(p *Params) *uint32 { return &p.MaxBurstLength }},
	"FirstBurstLength": {kind: keyMin, lo: 512, hi: 1<<24 - 1, leading: true, normal: true,
		number: func(p *Params) *uint32 { return &p.FirstBurstLength }},
	"DefaultTime2Wait": {kind: keyMax, lo: 0, hi: 3600, leading: true,
		number: func(p *Params) *uint32 { return &p.DefaultTime2Wait }},
	"DefaultTime2Retain": {kind: keyMin, lo: 0, hi: 3600, leading: true,
		number: func(p *Params) *uint32 { return &p.DefaultTime2Retain }},
	"MaxOutstandingR2T": {kind: keyMin, lo: 1, hi: 65535, leading: true, normal: true,
		number: func(p *Params) *uint32 { return &p.MaxOutstandingR2T }},
	"DataPDUInOrder":      {kind: keyOr, leading: true, normal: true, truth: func(p *Params) *bool { return &p.DataPDUInOrder }},
	"DataSequenceInOrder": {kind: keyOr, leading: true, normal: true, truth: func(p *Params) *bool { return &p.DataSequenceInOrder }},
	"ErrorRecoveryLevel": {kind: keyMin, lo: 0, hi: 2, leading: true,
		number: func(p *Params) *uint32 { return &p.ErrorRecoveryLevel }},
	"iSCSIProtocolLevel": {kind: keyMin, lo: 0, hi: 31, leading: true, normal: true,
		number: func(p *Params) *uint32 { return &p.ISCSIProtocolLevel }},
	"TaskReporting": {kind: keyList, leading: true, normal: true, values: []string{reportRFC3720, reportResponseFence, reportFastAbort},
		take: func(p *Params, v string) { p.TaskReporting = v }},

	"InitiatorAlias":     {kind: keyNote},
	"X#NodeArchitecture": {kind: keyNote},

	// Those of other phases, and the target's own.
	"InitiatorName":        {kind: keyRefuse},
	"TargetName":           {kind: keyRefuse},
	"SessionType":          {kind: keyRefuse},
	"AuthMethod":           {kind: keyRefuse},
	"SendTargets":          {kind: keyRefuse},
	"TargetAlias":          {kind: keyRefuse},
	"TargetAddress":        {kind: keyRefuse},
	"TargetPortalGroupTag": {kind: keyRefuse},

	// Obsolete (RFC 7143 13.25).
	"IFMarker":  {kind: keyRefuse},
	"OFMarker":  {kind: keyRefuse},
	"IFMarkInt": {kind: keyRefuse},
	"OFMarkInt": {kind: keyRefuse},
}

// Values of TaskReporting (RFC 7143 13.23).
const (
	reportRFC3720       = "RFC3720"
	reportResponseFence = "ResponseFence"
	reportFastAbort     = "FastAbort"
)

// The answers that stand for themselves (RFC 7143 6.2).
const (
	answerNotUnderstood = "NotUnderstood"
	answerIrrelevant    = "Irrelevant"
	answerReject        = "Reject"
)

// negotiation is one negotiation: a login's operational stage, or an exchange of
// text in full feature phase.
type negotiation struct {
	params    *Params
	offer     Params
	leading   bool
	login     bool
	discovery bool
	seen      map[string]bool
}

// answer negotiates one pair and returns the value to send back, "" for none.
// ok is false if the key, if it is known, was sent before in this negotiation
// (RFC 7143 6.3).
func (n *negotiation) answer(p pair) (value string, ok bool) {
	k := keys[p.key]
	if k == nil {
		return answerNotUnderstood, true
	}
	if n.seen[p.key] {
		return "", false
	}
	n.seen[p.key] = true
	switch {
	case p.value == answerNotUnderstood || p.value == answerIrrelevant || p.value == answerReject:
		// An answer to what the target said; what held before holds on.
		return "", true
	case k.kind == keyRefuse:
		return answerReject, true
	case (k.login || k.leading) && !n.login:
		return answerReject, true
	case k.normal && n.discovery, k.leading && !n.leading:
		return answerIrrelevant, true
	}
	offer := n.offer
	offer.MaxOutstandingR2T = n.params.mostR2Ts(offer.MaxOutstandingR2T)
	offer.FirstBurstLength = min(offer.FirstBurstLength, n.params.MaxBurstLength)
	return k.settle(p.value, n.params, &offer), true
}

func (k *key) settle(v string, have, offer *Params) string {
	switch k.kind {
	case keyNote:
		return ""
	case keyList:
		for v := range strings.SplitSeq(v, ",") {
			if slices.Contains(k.values, v) {
				k.take(have, v)
				return v
			}
		}
		return answerReject
	case keyOr, keyAnd:
		if v != "Yes" && v != "No" {
			return answerReject
		}
		r := v == "Yes" || *k.truth(offer)
		if k.kind == keyAnd {
			r = v == "Yes" && *k.truth(offer)
		}
		*k.truth(have) = r
		return yesNo(r)
	}
	number, err := parseNumber(v)
	if err != nil || number < uint64(k.lo) || number > uint64(k.hi) {
		return answerReject
	}
	r := uint32(number)
	switch k.kind {
	case keyMin:
		r = min(r, *k.number(offer))
	case keyMax:
		r = max(r, *k.number(offer))
	}
	*k.number(have) = r
	if k.kind == keyDeclare {
		return ""
	}
	return strconv.FormatUint(uint64(r), 10)
}

// parseNumber reads a numerical value: decimal, or hexadecimal after 0x
// (RFC 7143 6.1).
func parseNumber(s string) (uint64, error) {
	if len(s) > 2 && s[0] == '0' && (s[1] == 'x' || s[1] == 'X') {
		return strconv.ParseUint(s[2:], 16, 64)
	}
	return strconv.ParseUint(s, 10, 64)
}

func yesNo(b bool) string {
	if b {
		return "Yes"
	}
	return "No"
}

// finish makes the parameters fit each other once all are known.
func (p *Params) finish() {
	p.FirstBurstLength = min(p.FirstBurstLength, p.MaxBurstLength)
	// What was answered before the other keys were known may be more.
	p.MaxOutstandingR2T = p.mostR2Ts(p.MaxOutstandingR2T)
}

// mostR2Ts is n, or 1 where sequences come in order and may have to be recovered
// (RFC 7143 13.19).
func (p *Params) mostR2Ts(n uint32) uint32 {
	if p.DataSequenceInOrder && p.ErrorRecoveryLevel > 0 {
		return 1
	}
	return n
}

// takeSession takes over what is the session's, for a further connection of it.
func (p *Params) takeSession(x *Params) {
	own := *p
	*p = *x
	p.HeaderDigest, p.DataDigest = own.HeaderDigest, own.DataDigest
	p.MaxRecvDataSegmentLength, p.TargetMaxRecvDataSegmentLength = own.MaxRecvDataSegmentLength, own.TargetMaxRecvDataSegmentLength
}
