package iscsi

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"lunlab/target/iscsi/pdu"
)

// login is a login phase under way (RFC 7143 6.3). It belongs to the
// connection's reader.
type login struct {
	conn *conn
	// first is the header of the first request: what must not change.
	first     pdu.LoginRequest
	started   bool // first is known
	isid      [6]byte
	tsih      uint16 // of the session, once it is made
	cmdSN     uint32
	stage     uint8
	text      []byte            // of requests with the C bit
	begun     bool              // the first request's keys have been seen
	said      map[string]string // of them, those that say who wants what
	declared  bool              // the target's own keys have been sent
	initiator string
	target    *Target
	access    *Access
	auth      authenticator
	session   *session // that a further connection is for
	discovery bool
	params    *Params
	operating negotiation
	reply     []byte
}

// loginError ends a login with a status.
type loginError struct {
	status pdu.LoginStatus
	why    string
}

func (e *loginError) Error() string {
	return fmt.Sprintf("%s (status %02x/%02x)", e.why, uint16(e.status)>>8, uint8(e.status))
}

func failLogin(status pdu.LoginStatus, format string, args ...any) error {
	return &loginError{status, fmt.Sprintf(format, args...)}
}

// login takes the connection to full feature phase, or returns why it didn't.
func (c *conn) login() error {
	l := &login{conn: c, params: &c.params}
	l.auth.out = &c.srv.asked
	defer l.auth.end()
	for {
		done, err := l.step()
		if err != nil {
			var le *loginError
			if errors.As(err, &le) {
				l.refuse(le)
			}
			return err
		}
		if done {
			return nil
		}
	}
}

// step reads one Login Request and answers it.
func (l *login) step() (done bool, err error) {
	var p pdu.LoginRequest
	data, err := l.read(&p)
	if err != nil {
		return false, err
	}
	if len(l.text)+len(data) > maxTextLen {
		return false, failLogin(pdu.OutOfResources, "more than %d bytes of login text", maxTextLen)
	}
	l.text = append(l.text, data...)
	if p.Continue {
		return false, l.respond(&p, false, 0)
	}
	pairs, err := parseText(l.text)
	l.text = l.text[:0]
	if err != nil {
		return false, failLogin(pdu.InitiatorError, "malformed login text")
	}
	return l.exchange(&p, pairs)
}

// read takes one Login Request. Its data stays in the input buffer, until the next
// is read.
func (l *login) read(p *pdu.LoginRequest) (data []byte, err error) {
	c := l.conn
	b, err := c.in.view(pdu.BHSLen)
	if err != nil {
		return nil, err
	}
	var h pdu.Header
	if err := h.Decode(b); err != nil {
		return nil, err
	}
	decodeErr := p.Decode(b)
	if errors.Is(decodeErr, pdu.ErrOpcode) {
		// RFC 7143 11.13.5: something else than a login.
		l.first.InitiatorTaskTag = u32(b[16:])
		return nil, failLogin(pdu.InvalidDuringLogin, "%v before the login", h.Opcode)
	}
	if !l.started {
		l.started = true
		l.first, l.isid, l.tsih, l.cmdSN, l.stage = *p, p.ISID, p.TSIH, p.CmdSN, p.CSG
		c.cid = p.CID
		c.out.statSN = p.ExpStatSN
	}
	switch {
	case decodeErr != nil:
		return nil, failLogin(pdu.InitiatorError, "malformed Login Request")
	case c.surplus:
		return nil, failLogin(pdu.OutOfResources, "there are as many connections as there may be")
	}
	total := pdu.BHSLen + h.TotalAHSLength + h.DataSegmentLength + pdu.Pad(h.DataSegmentLength)
	if h.DataSegmentLength > int(c.params.TargetMaxRecvDataSegmentLength) && !l.declared || total > len(c.in.buf) {
		return nil, failLogin(pdu.InitiatorError, "Login Request with %d bytes of data", h.DataSegmentLength)
	}
	b, err = c.in.view(total)
	if err != nil {
		return nil, err
	}
	c.in.take(total)
	return b[pdu.BHSLen+h.TotalAHSLength:][:h.DataSegmentLength], l.check(p)
}

// check compares a request with what came before it.
func (l *login) check(p *pdu.LoginRequest) error {
	switch {
	case p.VersionMin > 0:
		return failLogin(pdu.UnsupportedVersion, "version %d at the least", p.VersionMin)
	case p.ISID != l.first.ISID, p.TSIH != l.first.TSIH, p.CID != l.first.CID, p.InitiatorTaskTag != l.first.InitiatorTaskTag:
		return failLogin(pdu.InitiatorError, "ISID, TSIH, CID or task tag changed during login")
	case p.CSG != l.stage:
		return failLogin(pdu.InitiatorError, "login stage %d, not %d", p.CSG, l.stage)
	}
	return nil
}

// exchange negotiates the pairs of one request, complete, and answers.
func (l *login) exchange(p *pdu.LoginRequest, pairs []pair) (done bool, err error) {
	c := l.conn
	if !l.begun {
		if err := l.identify(pairs); err != nil {
			return false, err
		}
		l.begun = true
		l.operating = negotiation{
			params: &c.params, offer: offered(1), login: true, leading: l.session == nil,
			discovery: l.discovery, seen: map[string]bool{},
		}
		if l.target != nil {
			l.operating.offer.MaxConnections = uint32(l.target.HWQueues)
			// RFC 7143 13.9: in the first response.
			l.say("TargetPortalGroupTag", fmt.Sprint(c.tag))
			if l.target.Alias != "" {
				l.say("TargetAlias", l.target.Alias)
			}
		}
	}
	switch l.stage {
	case pdu.StageSecurity:
		err = l.security(pairs)
	case pdu.StageOperational:
		err = l.operational(pairs)
	}
	if err != nil {
		return false, err
	}
	if !p.Transit {
		return false, l.respond(p, false, 0)
	}
	next := p.NSG
	if l.stage == pdu.StageSecurity && !l.authenticated() {
		// Not yet.
		return false, l.respond(p, false, 0)
	}
	if next != pdu.StageFullFeature {
		err := l.respond(p, true, next)
		l.stage = next
		return false, err
	}
	return true, l.complete(p)
}

// identify reads the keys that say who wants what (RFC 7143 6.3, 13.4 to 13.21).
func (l *login) identify(pairs []pair) error {
	l.said = map[string]string{"InitiatorName": "", "TargetName": "", "SessionType": "Normal"}
	for _, p := range pairs {
		if _, ok := l.said[p.key]; ok {
			l.said[p.key] = p.value
		}
	}
	l.initiator = l.said["InitiatorName"]
	targetName := l.said["TargetName"]
	switch t := l.said["SessionType"]; t {
	case "Discovery":
		l.discovery = true
	case "Normal":
	default:
		return failLogin(pdu.SessionTypeNotSupported, "session type %q", t)
	}
	switch {
	case l.initiator == "":
		return failLogin(pdu.MissingParameter, "no InitiatorName")
	case len(l.initiator) > maxNameLen, !utf8.ValidString(l.initiator), strings.ContainsFunc(l.initiator, unicode.IsControl):
		return failLogin(pdu.InitiatorError, "InitiatorName %q can't be a name", l.initiator)
	case !l.discovery && targetName == "":
		return failLogin(pdu.MissingParameter, "no TargetName")
	}
	l.auth.secrets = l.conn.srv.opt.DiscoveryCHAP
	if !l.discovery {
		l.target = l.conn.srv.target(targetName)
		if l.target == nil || !l.target.in(l.conn.tag) {
			return failLogin(pdu.NotFound, "no target %q in portal group %d", targetName, l.conn.tag)
		}
		if l.access = l.target.accessFor(l.initiator); l.access == nil {
			return failLogin(pdu.AuthorizationFailure, "%s may not use %s", l.initiator, targetName)
		}
		if r := l.target.Redirect; r != nil {
			return l.redirect(r)
		}
		l.auth.secrets = l.access.CHAP
	}
	if l.auth.secrets != nil && l.stage != pdu.StageSecurity {
		return failLogin(pdu.AuthenticationFailure, "no authentication, and it is asked for")
	}
	if l.first.TSIH != 0 {
		return l.join()
	}
	return nil
}

// redirect says where to go instead.
func (l *login) redirect(r *Redirect) error {
	status := pdu.TargetMovedTemporarily
	if r.Permanent {
		status = pdu.TargetMovedPermanently
	}
	l.reply = appendPair(l.reply[:0], "TargetAddress", r.Address)
	return &loginError{status: status, why: "sent to " + r.Address}
}

// join finds the session that a login with a TSIH is for.
func (l *login) join() error {
	s := l.conn.srv
	s.mu.Lock()
	x := s.sessions[l.first.TSIH]
	s.mu.Unlock()
	if x == nil || l.target == nil || x.tgt == nil || !x.tgt.same(l.target) || x.isid != l.isid || x.tag != l.conn.tag || !strings.EqualFold(x.initiator, l.initiator) {
		return failLogin(pdu.SessionDoesNotExist, "no session %d", l.first.TSIH)
	}
	l.session = x
	l.conn.params.takeSession(&x.params)
	return nil
}

// security negotiates the security stage (RFC 7143 6.3.2, 12.1).
func (l *login) security(pairs []pair) error {
	chap := map[string]string{}
	for _, p := range pairs {
		switch {
		case l.introduces(p):
			if err := l.same(p); err != nil {
				return err
			}
		case p.key == "AuthMethod":
			if l.auth.state != chapStart {
				return failLogin(pdu.InitiatorError, "AuthMethod was sent twice")
			}
			want := "None"
			if l.auth.secrets != nil {
				want, l.auth.state = "CHAP", chapMethod
			}
			if !listHas(p.value, want) {
				return failLogin(pdu.AuthenticationFailure, "AuthMethod %q, and it has to be %s", p.value, want)
			}
			l.say(p.key, want)
		case strings.HasPrefix(p.key, "CHAP_") && l.auth.secrets != nil:
			if _, twice := chap[p.key]; twice {
				return failLogin(pdu.InitiatorError, "%s was sent twice", p.key)
			}
			chap[p.key] = p.value
		case keys[p.key] != nil && keys[p.key].kind == keyNote:
		case keys[p.key] != nil:
			// An operational key in the wrong stage.
			return failLogin(pdu.InitiatorError, "%s in the security stage", p.key)
		default:
			l.say(p.key, answerNotUnderstood)
		}
	}
	return l.auth.step(chap, l.say)
}

// authenticated tells whether the security stage may end.
func (l *login) authenticated() bool {
	return l.auth.secrets == nil || l.auth.state == chapDone
}

// operational negotiates the operational stage (RFC 7143 6.3.3).
func (l *login) operational(pairs []pair) error {
	// Some depend on others of the same request (RFC 7143 13.14, 13.19).
	last := func(p pair) int {
		if p.key == "FirstBurstLength" || p.key == "MaxOutstandingR2T" {
			return 1
		}
		return 0
	}
	pairs = slices.SortedStableFunc(slices.Values(pairs), func(a, b pair) int { return last(a) - last(b) })
	for _, p := range pairs {
		if l.introduces(p) {
			if err := l.same(p); err != nil {
				return err
			}
			continue
		}
		if p.key == "AuthMethod" {
			return failLogin(pdu.InitiatorError, "AuthMethod in the operational stage")
		}
		v, ok := l.operating.answer(p)
		if !ok {
			return failLogin(pdu.InitiatorError, "%s was sent twice", p.key)
		}
		if v == answerReject && keys[p.key].kind == keyDeclare {
			// There is no answer to a declaration.
			return failLogin(pdu.InitiatorError, "%s is %q", p.key, p.value)
		}
		if v != "" {
			l.say(p.key, v)
		}
	}
	if !l.declared {
		l.declared = true
		c := l.conn
		c.params.TargetMaxRecvDataSegmentLength = l.operating.offer.TargetMaxRecvDataSegmentLength
		l.say("MaxRecvDataSegmentLength", fmt.Sprint(c.params.TargetMaxRecvDataSegmentLength))
	}
	return nil
}

// introduces tells whether a key is one that identify has read.
func (l *login) introduces(p pair) bool {
	_, ok := l.said[p.key]
	return ok
}

// same refuses to take such a key for another value than at first. libiscsi sends
// some of them in each stage.
func (l *login) same(p pair) error {
	if l.said[p.key] != p.value {
		return failLogin(pdu.InitiatorError, "%s was sent twice", p.key)
	}
	return nil
}

func listHas(list, want string) bool {
	for v := range strings.SplitSeq(list, ",") {
		if v == want {
			return true
		}
	}
	return false
}

func (l *login) say(key, value string) { l.reply = appendPair(l.reply, key, value) }

// complete makes the session and sends the last response.
func (l *login) complete(p *pdu.LoginRequest) error {
	c := l.conn
	c.params.finish()
	if l.session != nil {
		if status := l.session.join(c, l.cmdSN); status != pdu.LoginSuccess {
			return failLogin(status, "session %d can't have another connection", l.first.TSIH)
		}
	} else {
		x, status := c.srv.openSession(c, l)
		if status != pdu.LoginSuccess {
			return failLogin(status, "no session could be made")
		}
		l.tsih = x.tsih
	}
	if err := l.respond(p, true, pdu.StageFullFeature); err != nil {
		return err
	}
	c.digests = digests{c.params.HeaderDigest, c.params.DataDigest}
	c.out.begin(c.digests, c.sess.params.ErrorRecoveryLevel)
	return nil
}

// respond sends the reply that has gathered, in parts if it is more than the
// initiator takes at once: it asks for each next one with an empty request
// (RFC 7143 6.2).
func (l *login) respond(p *pdu.LoginRequest, transit bool, nsg uint8) error {
	most := min(int(defaultParams().MaxRecvDataSegmentLength), int(l.conn.params.MaxRecvDataSegmentLength))
	for len(l.reply) > most {
		r := pdu.LoginResponse{
			Continue: true, CSG: p.CSG, DataSegmentLength: most, ISID: l.isid, TSIH: l.first.TSIH, InitiatorTaskTag: p.InitiatorTaskTag,
		}
		l.send(&r, l.reply[:most])
		l.reply = l.reply[most:]
		if err := l.conn.out.flush(true); err != nil {
			return err
		}
		var next pdu.LoginRequest
		if data, err := l.read(&next); err != nil {
			return err
		} else if len(data) > 0 || next.Continue {
			return failLogin(pdu.InitiatorError, "text amid an answer of several parts")
		}
	}
	r := pdu.LoginResponse{
		Transit:           transit,
		CSG:               p.CSG,
		DataSegmentLength: len(l.reply),
		ISID:              l.isid,
		TSIH:              l.tsih,
		InitiatorTaskTag:  p.InitiatorTaskTag,
	}
	if transit {
		r.NSG = nsg
	}
	l.send(&r, l.reply)
	l.reply = l.reply[:0]
	return l.conn.out.flush(true)
}

// refuse sends the response that ends the login (RFC 7143 11.13.5).
func (l *login) refuse(e *loginError) {
	r := pdu.LoginResponse{
		CSG: l.stage, ISID: l.isid, TSIH: l.first.TSIH, InitiatorTaskTag: l.first.InitiatorTaskTag, Status: e.status,
	}
	if e.status>>8 != 1 {
		l.reply = nil // only redirection says more
	}
	r.DataSegmentLength = len(l.reply)
	l.send(&r, l.reply)
	l.conn.linger()
}

func (l *login) send(r *pdu.LoginResponse, data []byte) {
	if l.conn.sess == nil {
		r.SN.ExpCmdSN, r.SN.MaxCmdSN = l.cmdSN, l.cmdSN
	}
	l.conn.send(r.Encode, data)
}
