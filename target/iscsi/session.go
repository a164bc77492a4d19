package iscsi

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"lunlab/lun"
	"lunlab/target"
	"lunlab/target/iscsi/pdu"
)

// session is an iSCSI session: an I_T nexus and the connections that it has.
type session struct {
	srv       *Server
	tgt       *Target // nil in a discovery session
	initiator string
	isid      [6]byte
	tsih      uint16
	tag       uint16                 // of the portal group
	access    atomic.Pointer[Access] // what it may see
	nexus     *target.Nexus          // nil in a discovery session

	// params is fixed when the first connection has logged in, but for the
	// connections' own, which are in conn.
	params Params

	memory account // for data on its way

	// exp and max are ExpCmdSN and MaxCmdSN. max grows by one for each command
	// that has ended, so that no more than the window can be in flight. Changed
	// under mu, read freely.
	exp, max atomic.Uint32

	mu        sync.Mutex
	held      map[uint32]arrival // came before their turn, by CmdSN
	behind    []*arrival         // immediate functions that what comes before them is waited for
	conns     map[uint16]*conn   // by CID
	lost      []*conn            // gone, with tasks that may be reassigned
	adopters  map[uint32]*conn   // by task tag: who gets the answer of a lost connection's task
	inFlight  int                // commands, sent by CmdSN and immediately
	most      int
	immediate int
	closed    bool

	fence fence
}

// arrival is a request that takes its turn by CmdSN (RFC 7143 4.2.2.1).
type arrival struct {
	conn      *conn
	sn        uint32
	immediate bool

	// One of these: a SCSI command, a request to be refused, another request.
	cmd    *command
	reason pdu.Reason
	void   bool // a command that was aborted before it came
	bhs    [pdu.BHSLen]byte
	data   []byte  // in the input buffer, or in kept
	kept   *buffer // what data is in while the request waits
	begun  bool    // a function of session.behind is being performed
}

// arrive lets a come in its turn: at once, later, or never if its number is
// none that may come (RFC 7143 4.2.2.1: such are ignored). What a points to must
// outlast the call unless it is its turn.
func (s *session) arrive(on *conn, a *arrival) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		a.drop()
		return
	}
	if a.immediate {
		s.arriveImmediate(on, a)
		return
	}
	exp := s.exp.Load()
	ahead := int32(a.sn - exp)
	if ahead < 0 || int32(a.sn-s.max.Load()) > 0 {
		s.mu.Unlock()
		a.drop()
		return
	}
	if ahead > 0 || len(s.behind) > 0 && s.pausedLocked() {
		_, twice := s.held[a.sn]
		if !twice {
			a.hold()
			s.held[a.sn] = *a
		}
		s.mu.Unlock()
		if twice {
			a.drop()
		}
		return
	}
	s.exp.Store(exp + 1)
	s.enter(a)
	more := len(s.held)+len(s.behind) > 0
	s.mu.Unlock()
	on.begin(a)
	if more {
		s.advance(on)
	}
}

// hold makes a one that can wait for its turn.
func (a *arrival) hold() {
	if k := a.cmd; k != nil {
		k.shared = true
		if in := k.dataOut[0]; k.data == nil && len(in) > 0 && k.allocate() {
			copy(k.data.b, in)
		}
	}
	if len(a.data) == 0 {
		return
	}
	if a.kept = a.conn.sess.memory.get(len(a.data)); a.kept == nil {
		a.data, a.reason = nil, pdu.ReasonLongOperation
		return
	}
	a.data = a.kept.b[:copy(a.kept.b, a.data)]
}

// advance lets those come whose turn it is now.
func (s *session) advance(on *conn) {
	for {
		s.mu.Lock()
		if a := s.functionLocked(); a != nil {
			a.begun = true
			s.mu.Unlock()
			on.begin(a)
			s.mu.Lock()
			s.behind = slices.DeleteFunc(s.behind, func(o *arrival) bool { return o == a })
			s.mu.Unlock()
			continue
		}
		exp := s.exp.Load()
		a, ok := s.held[exp]
		if !ok || s.pausedLocked() {
			// Whoever performs the function goes on when it has.
			s.mu.Unlock()
			return
		}
		delete(s.held, exp)
		s.exp.Store(exp + 1)
		s.enter(&a)
		s.mu.Unlock()
		on.begin(&a)
		if a.kept != nil {
			a.kept.drop()
		}
	}
}

// enter counts a in and puts a command into its task set. The lock is held, so
// that what comes next by CmdSN finds it there.
func (s *session) enter(a *arrival) {
	s.inFlight++
	s.most = max(s.most, s.inFlight)
	if c := a.cmd; c != nil {
		c.admission = s.nexus.Enter(&c.Task, c, c.unit, uint64(c.req.InitiatorTaskTag))
	}
}

// end counts out what arrive has let come, and opens the window by one.
func (s *session) end(immediate bool) {
	s.mu.Lock()
	s.inFlight--
	if immediate {
		s.immediate--
	} else {
		s.max.Add(1)
	}
	s.mu.Unlock()
}

// drop releases what an arrival holds that won't come.
func (a *arrival) drop() {
	if a.kept != nil {
		a.kept.drop()
	}
	if a.cmd != nil {
		a.conn.unregister(a.cmd)
		a.cmd.release()
	}
}

// abandon is drop for another goroutine than that of the connection.
func (a *arrival) abandon() {
	if a.kept != nil {
		a.kept.drop()
	}
	if a.cmd != nil {
		a.conn.unregister(a.cmd)
		a.cmd.abandon()
	}
}

func (a *arrival) header() []byte {
	if a.cmd != nil {
		a.cmd.req.Encode(a.bhs[:])
	}
	return a.bhs[:]
}

// openSession makes the session of a login that has come to its end. An older
// session of the same initiator port ends (RFC 7143 6.3.5).
func (s *Server) openSession(c *conn, l *login) (*session, pdu.LoginStatus) {
	x := &session{
		srv: s, tgt: l.target, initiator: l.initiator, isid: l.isid, tag: c.tag, params: *l.params,
		held: map[uint32]arrival{}, conns: map[uint16]*conn{},
	}
	x.memory.pool = &s.pool
	x.access.Store(l.access)
	x.fence.acked = make(chan struct{}, 1)
	window := uint32(DefaultCanQueue)
	if x.tgt != nil {
		window = uint32(x.tgt.CanQueue)
	}
	x.exp.Store(l.cmdSN)
	x.max.Store(l.cmdSN + window - 1)
	x.conns[c.cid] = c
	c.sess = x
	for {
		s.mu.Lock()
		if s.closing {
			s.mu.Unlock()
			return nil, pdu.ServiceUnavailable
		}
		old := s.findLocked(x)
		full := old == nil && len(s.sessions) >= s.opt.MaxConnections
		if old == nil && !full {
			if x.tsih = s.freeTSIHLocked(); x.tsih == 0 {
				s.mu.Unlock()
				return nil, pdu.OutOfResources
			}
			x.openNexus()
			s.sessions[x.tsih] = x
			s.mu.Unlock()
			break
		}
		s.mu.Unlock()
		if full {
			// As many sessions as there may be connections, and this one's isn't
			// among them: some have none.
			if !s.closeOrphan() {
				return nil, pdu.OutOfResources
			}
			continue
		}
		old.close("reinstated by a new login")
	}
	if x.tgt != nil && s.target(x.tgt.Name) != x.tgt {
		// See SetTargets. The connection isn't the session's any more, so that it
		// can be told.
		x.mu.Lock()
		delete(x.conns, c.cid)
		c.sess = nil
		x.mu.Unlock()
		x.close("its target has changed during the login")
		return nil, pdu.ServiceUnavailable
	}
	return x, pdu.LoginSuccess
}

// closeOrphan ends the session that has been without a connection for longest, if
// there is one that isn't about to end, to make room.
func (s *Server) closeOrphan() bool {
	var oldest *session
	var since time.Time
	for _, x := range s.listSessions() {
		x.mu.Lock()
		if n := len(x.lost); n > 0 && len(x.conns) == 0 && !x.closed {
			if lost := x.lost[n-1].lostAt; oldest == nil || lost.Before(since) {
				oldest, since = x, lost
			}
		}
		x.mu.Unlock()
	}
	if oldest == nil {
		return false
	}
	oldest.close("others need its room")
	return true
}

// firstFunctions are the task management functions of RFC 7143; the others are those of
// RFC 7144, with iSCSIProtocolLevel 2.
const firstFunctions = lun.AbortTaskFunction | lun.AbortTaskSetFunction | lun.ClearACAFunction | lun.ClearTaskSetFunction | lun.LogicalUnitResetFunction

func (x *session) openNexus() {
	if x.tgt == nil {
		return
	}
	functions := lun.TaskFunctions(0)
	if x.params.ISCSIProtocolLevel < 2 {
		functions = firstFunctions
	}
	x.nexus = x.tgt.Device.Open(lun.Nexus{
		Functions:  functions,
		Initiator:  transportID(x.initiator, x.isid),
		TargetPort: x.tag,
		Name:       portName(x.initiator, x.isid),
	}, x.sees)
}

// findLocked finds the session of the same I_T nexus as x; discovery sessions have
// none.
func (s *Server) findLocked(x *session) *session {
	if x.tgt == nil {
		return nil
	}
	for _, o := range s.sessions {
		if o.tgt != nil && o.tgt.same(x.tgt) && o.isid == x.isid && o.tag == x.tag && strings.EqualFold(o.initiator, x.initiator) {
			return o
		}
	}
	return nil
}

func (s *Server) freeTSIHLocked() uint16 {
	for range 1 << 16 {
		s.nextTSIH++
		if _, used := s.sessions[s.nextTSIH]; !used && s.nextTSIH != 0 {
			return s.nextTSIH
		}
	}
	return 0
}

// join makes c a further connection of the session. One with the same CID is
// taken for dead, and its tasks end (RFC 7143 6.3.4).
func (x *session) join(c *conn, cmdSN uint32) pdu.LoginStatus {
	x.mu.Lock()
	old := x.conns[c.cid]
	switch {
	case x.closed:
		x.mu.Unlock()
		return pdu.SessionDoesNotExist
	case old == nil && len(x.conns) >= int(x.params.MaxConnections):
		x.mu.Unlock()
		return pdu.TooManyConnections
	}
	x.conns[c.cid] = c
	c.sess = x
	keep := false
	var given []*conn
	if old != nil {
		keep, given = x.loseLocked(old)
	}
	x.mu.Unlock()
	if old != nil {
		old.nc.Close()
		x.dropHeld(old)
		if !keep {
			given = append(given, old)
		}
	}
	for _, o := range given {
		x.abandon(o)
	}
	return pdu.LoginSuccess
}

// loseLocked makes c, which is in conns no more, one whose tasks may be
// reassigned, if recovery of connections was agreed on, and tells whether it is. It
// returns those that the caller has to abandon for it: an older one with its CID, and
// the oldest if there are as many lost ones as the session may have connections.
func (x *session) loseLocked(c *conn) (kept bool, given []*conn) {
	if x.params.ErrorRecoveryLevel < 2 || x.closed {
		return false, nil
	}
	if !c.lostAt.IsZero() {
		return slices.Contains(x.lost, c), nil
	}
	c.lostAt = time.Now()
	if o := x.takeLost(c.cid); o != nil {
		given = append(given, o)
	}
	if len(x.lost) >= int(x.params.MaxConnections) {
		given = append(given, x.lost[0])
		x.lost = slices.Delete(x.lost, 0, 1)
	}
	x.lost = append(x.lost, c)
	return true, given
}

// dropHeld forgets what of a connection that is gone waited for its turn: the
// initiator may send that again by another.
func (x *session) dropHeld(c *conn) {
	x.mu.Lock()
	var mine []arrival
	for sn, a := range x.held {
		if a.conn == c {
			mine = append(mine, a)
			delete(x.held, sn)
		}
	}
	x.behind = slices.DeleteFunc(x.behind, func(a *arrival) bool {
		gone := a.conn == c && !a.begun
		if gone {
			x.inFlight--
			x.immediate--
		}
		return gone
	})
	x.mu.Unlock()
	for _, a := range mine {
		a.abandon()
	}
}

// abandon ends the tasks of a connection that is gone for good.
func (x *session) abandon(c *conn) {
	c.out.release()
	if x.nexus != nil {
		a := x.nexus.AbortWhere(func(k *target.Task) bool {
			o, ok := k.Owner().(*command)
			return ok && o.conn() == c
		})
		a.Wait()
	}
}

// maxPatience bounds how long the tasks of a lost connection wait, as the initiator
// has the last word on DefaultTime2Wait (RFC 7143 13.15).
const maxPatience = 2 * time.Minute

// patience is how long the tasks of a lost connection wait.
func (p *Params) patience() time.Duration {
	return min(time.Duration(p.DefaultTime2Wait+p.DefaultTime2Retain)*time.Second, maxPatience)
}

// expire gives up lost connections that nobody has asked for in time, and the
// session with the last of them, in a goroutine of the server's.
func (x *session) expire(now time.Time) {
	patience := x.params.patience()
	x.mu.Lock()
	var gone []*conn
	x.lost = slices.DeleteFunc(x.lost, func(c *conn) bool {
		if now.Sub(c.lostAt) < patience {
			return false
		}
		gone = append(gone, c)
		return true
	})
	last := len(gone) > 0 && len(x.conns) == 0 && len(x.lost) == 0
	x.mu.Unlock()
	if len(gone) == 0 {
		return
	}
	// Commands may take their time to end.
	x.srv.wg.Go(func() {
		for _, c := range gone {
			x.abandon(c)
		}
		if last {
			x.close("nobody recovered its connection in time")
		}
	})
}

// close ends the session and its connections. When it returns, its tasks have
// ended and its nexus is gone.
func (x *session) close(why string) {
	x.mu.Lock()
	was := x.closed
	x.closed = true
	cs := make([]*conn, 0, len(x.conns))
	for _, c := range x.conns {
		cs = append(cs, c)
	}
	held, lost := x.held, x.lost
	x.held, x.lost = nil, nil
	x.mu.Unlock()
	for _, c := range cs {
		c.out.release()
		c.nc.Close()
	}
	for _, c := range lost {
		c.out.release()
	}
	for _, a := range held {
		a.abandon()
	}
	if x.nexus != nil {
		x.nexus.Close()
	}
	if !was {
		x.srv.log.Info("session ended", "session", x.String(), "why", why)
	}
	x.srv.mu.Lock()
	if x.srv.sessions[x.tsih] == x {
		delete(x.srv.sessions, x.tsih)
	}
	x.srv.mu.Unlock()
}

func (x *session) String() string {
	name := "discovery"
	if x.tgt != nil {
		name = x.tgt.Name
	}
	return fmt.Sprintf("%s -> %s", portName(x.initiator, x.isid), name)
}
