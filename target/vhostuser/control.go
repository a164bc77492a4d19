package vhostuser

import (
	"lunlab/lun"
	"lunlab/target"
)

// Requests of the control queue (virtio 1.2 5.6.6.2).
const (
	controlTMF         = 0
	controlANQuery     = 1
	controlANSubscribe = 2

	tmfSize = 24
	anSize  = 16

	anResponseSize = 5
)

// Task management functions.
const (
	tmfAbortTask        = 0
	tmfAbortTaskSet     = 1
	tmfClearACA         = 2
	tmfClearTaskSet     = 3
	tmfNexusReset       = 4
	tmfLogicalUnitReset = 5
	tmfQueryTask        = 6
	tmfQueryTaskSet     = 7
)

// functions are the task management functions among them.
const functions = lun.AbortTaskFunction | lun.AbortTaskSetFunction | lun.ClearACAFunction | lun.ClearTaskSetFunction |
	lun.NexusResetFunction | lun.LogicalUnitResetFunction | lun.QueryTaskFunction | lun.QueryTaskSetFunction

// control carries out a request of the control queue.
func (t *task) control() {
	room := 1
	n := tmfSize
	if size(t.chain.out) >= 4 {
		t.out = consume(t.chain.out, t.raw[:4])
		if le.Uint32(t.raw[:]) != controlTMF {
			n, room = anSize, anResponseSize
		}
	}
	if size(t.chain.out) < uint64(n-4) || size(t.chain.in) < uint64(room) {
		t.refuse()
		return
	}
	consume(t.out, t.raw[4:n])
	t.resp, _ = cut(t.resp[:0], t.chain.in, room)
	switch le.Uint32(t.raw[:]) {
	case controlTMF:
		// Requests that are to be aborted may have to be waited for.
		t.ring.s.begin()
		go t.manage()
	case controlANQuery, controlANSubscribe:
		// No unit here tells of the events that may be asked for (those of MMC's
		// GET EVENT STATUS NOTIFICATION): none is supported.
		t.reply(0, 0, 0, 0, byte(lunResponse([8]byte(t.raw[4:12]))))
	default:
		t.reply(0, 0, 0, 0, byte(responseFailure))
	}
}

func lunResponse(l [8]byte) response {
	if _, ok := address(l); !ok {
		return responseBadTarget
	}
	return responseOK
}

// reply answers a request of the control queue.
func (t *task) reply(b ...byte) {
	n := uint32(len(b))
	for _, p := range t.resp {
		b = b[copy(p, b):]
	}
	t.complete(n)
}

// manage carries out a task management function, and answers.
func (t *task) manage() {
	s, r := t.ring.s, t.ring
	defer s.end()
	// What the driver made available before is in the task set then.
	for _, o := range s.requestRings() {
		o.poll()
	}
	function := le.Uint32(t.raw[4:])
	reset := function == tmfLogicalUnitReset || function == tmfNexusReset
	if reset {
		s.resetting.Add(1)
	}
	res := s.manage(function, [8]byte(t.raw[8:]), le.Uint64(t.raw[16:]))
	// All that was aborted is in the used rings before this is answered.
	for _, o := range s.requestRings() {
		o.settle()
	}
	if reset {
		s.resetting.Add(-1)
	}
	if err := t.guarded(func() { t.reply(byte(res)) }); err != nil {
		r.fail(err)
	}
	r.guardedSignal()
}

func (s *session) manage(function uint32, l [8]byte, id uint64) response {
	a, ok := address(l)
	if !ok {
		return responseBadTarget
	}
	n, lu := s.nexus, s.nexus.Lookup(a)
	if !lu.Present() && function != tmfNexusReset {
		return responseIncorrectLUN
	}
	var aborting target.Aborting
	switch function {
	case tmfAbortTask:
		aborting, _ = n.AbortTask(lu, tagOf(id))
	case tmfAbortTaskSet:
		aborting = n.AbortTaskSet(lu)
	case tmfClearACA:
		aborting = n.ClearACA(lu)
	case tmfClearTaskSet:
		aborting = n.ClearTaskSet(lu)
	case tmfNexusReset:
		aborting = n.NexusReset()
	case tmfLogicalUnitReset:
		aborting = n.LogicalUnitReset(lu)
	case tmfQueryTask:
		return found(n.QueryTask(lu, tagOf(id)))
	case tmfQueryTaskSet:
		return found(n.QueryTaskSet(lu))
	default:
		return responseFunctionRejected
	}
	aborting.Wait()
	return responseOK
}

// found is how QUERY TASK says that there is one, and that there is none.
func found(yes bool) response {
	if yes {
		return responseFunctionSucceeded
	}
	return responseOK
}
