package iscsi

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"lunlab/target/iscsi/pdu"
)

// exchange is the text that a connection negotiates in full feature phase: what
// has come of a request in several PDUs, and what is left to say of an answer.
type exchange struct {
	itt   uint32
	ttt   uint32
	in    []byte
	out   []byte
	begun bool
	seen  map[string]bool // keys that have been sent
}

// text answers a Text Request (RFC 7143 11.10, 11.11).
func (c *conn) text(p *pdu.TextRequest, a *arrival) {
	c.exchangeMu.Lock()
	defer c.exchangeMu.Unlock()
	e := &c.exchange
	if p.TargetTransferTag == pdu.NoTag {
		// A new exchange; an old one is void.
		*e = exchange{itt: p.InitiatorTaskTag, begun: true, seen: map[string]bool{}}
	} else if !e.begun || e.ttt != p.TargetTransferTag || e.itt != p.InitiatorTaskTag {
		c.reject(pdu.ReasonProtocolError, a.bhs[:])
		return
	}
	if len(e.in)+len(a.data) > maxTextLen {
		*e = exchange{}
		c.reject(pdu.ReasonProtocolError, a.bhs[:])
		return
	}
	e.in = append(e.in, a.data...)
	if p.Continue {
		c.answerText(p, a, nil, false, false)
		return
	}
	pairs, err := parseText(e.in)
	e.in = nil
	if err != nil || len(e.out) > 0 && len(pairs) > 0 {
		*e = exchange{}
		c.reject(pdu.ReasonProtocolError, a.bhs[:])
		return
	}
	n := negotiation{params: &c.params, discovery: c.sess.tgt == nil, seen: e.seen}
	for _, kv := range pairs {
		// What is asked for twice would multiply the answer.
		if kv.key == "SendTargets" && !n.seen[kv.key] {
			n.seen[kv.key] = true
			e.out = append(e.out, c.sendTargets(kv.value)...)
			continue
		}
		v, ok := n.answer(kv)
		if !ok {
			*e = exchange{}
			c.reject(pdu.ReasonProtocolError, a.bhs[:])
			return
		}
		if v != "" {
			e.out = appendPair(e.out, kv.key, v)
		}
	}
	c.step.Store(c.params.MaxRecvDataSegmentLength)
	step := c.dataInStep()
	if len(e.out) <= step {
		out := e.out
		final := p.Final
		if final {
			*e = exchange{}
		} else {
			e.out = nil
		}
		c.answerText(p, a, out, final, false)
		return
	}
	out := e.out[:step]
	e.out = e.out[step:]
	c.answerText(p, a, out, false, true)
}

// answerText sends a Text Response. One that isn't the last has a tag by which
// the initiator goes on.
func (c *conn) answerText(p *pdu.TextRequest, a *arrival, data []byte, final, more bool) {
	r := pdu.TextResponse{
		Final:             final,
		Continue:          more,
		DataSegmentLength: len(data),
		LUN:               p.LUN,
		InitiatorTaskTag:  p.InitiatorTaskTag,
		TargetTransferTag: pdu.NoTag,
	}
	if !final {
		c.mu.Lock()
		c.exchange.ttt = c.newTTT()
		c.mu.Unlock()
		r.TargetTransferTag = c.exchange.ttt
	}
	c.answerWith(a, r.Encode, data)
}

// sendTargets is the answer to SendTargets (RFC 7143 appendix C): all targets in
// a discovery session, one by name in any, the session's own for an empty value.
func (c *conn) sendTargets(which string) (b []byte) {
	own := c.sess.tgt
	switch {
	case which == "All" && own == nil:
		for _, t := range c.srv.sortedTargets() {
			if t.accessFor(c.sess.initiator) != nil {
				b = c.appendTarget(b, t)
			}
		}
	case which == "All":
		return appendPair(nil, "SendTargets", answerReject)
	case which == "" && own != nil:
		b = c.appendTarget(b, own)
	default:
		if t := c.srv.target(which); t != nil && (own == nil || own.same(t)) && t.accessFor(c.sess.initiator) != nil {
			b = c.appendTarget(b, t)
		}
	}
	return b
}

func (c *conn) appendTarget(b []byte, t *Target) []byte {
	b = appendPair(b, "TargetName", t.Name)
	for _, a := range c.srv.portals(c, t) {
		b = appendPair(b, "TargetAddress", a)
	}
	return b
}

// portals lists the portals of t with their groups, the asking connection's own
// first. Where a listener is open to all addresses, the one that was reached
// stands for it.
func (s *Server) portals(c *conn, t *Target) []string {
	local := c.nc.LocalAddr()
	var list []string
	if t.in(c.tag) {
		list = append(list, fmt.Sprintf("%v,%d", local, c.tag))
	}
	own := len(list)
	s.mu.Lock()
	defer s.mu.Unlock()
	for ln, tag := range s.listeners {
		a, ok := ln.Addr().(*net.TCPAddr)
		if !ok || !t.in(tag) {
			continue
		}
		if a.IP.IsUnspecified() {
			if l, ok := local.(*net.TCPAddr); ok {
				a = &net.TCPAddr{IP: l.IP, Port: a.Port, Zone: l.Zone}
			}
		}
		if p := fmt.Sprintf("%v,%d", a, tag); !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	slices.Sort(list[own:])
	return list
}

func (s *Server) sortedTargets() []*Target {
	return slices.SortedFunc(maps.Values(*s.targets.Load()), func(a, b *Target) int { return strings.Compare(a.Name, b.Name) })
}
