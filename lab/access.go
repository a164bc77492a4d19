package lab

import (
	"net"
	"path"

	"github.com/goccy/go-yaml/ast"
)

// Access says which iSCSI initiators may use a target, and what they see of it.
type Access struct {
	Initiator string // pattern for names, as path.Match reads it; "" means any
	LUNs      []int  // nil means all
	CHAP      *CHAP  // nil means without authentication
}

// CHAP holds secrets: the initiator's, and the target's if it has one.
type CHAP struct {
	User, Secret             string
	TargetUser, TargetSecret string
}

// Redirect sends iSCSI initiators to another portal.
type Redirect struct {
	Address   string // HOST:PORT
	Permanent bool
}

func (l *loader) access(n ast.Node, t *Target) {
	l.list(n, "access", func(n ast.Node) {
		a := Access{}
		l.mapping(n, "an access",
			field{"initiator", false, func(n ast.Node) {
				const want = "a pattern for initiator names, such as iqn.2026-01.example.host:*"
				l.str("initiator", want, &a.Initiator)(n)
				if _, err := path.Match(a.Initiator, ""); err != nil {
					l.fail(at(n), "initiator is %q; want %s", a.Initiator, want)
				}
			}},
			field{"luns", false, func(n ast.Node) {
				a.LUNs = []int{}
				l.list(n, "luns", func(n ast.Node) {
					number := 0
					integer(l.decoder, "luns", 0, maxLUN, &number)(n)
					a.LUNs = append(a.LUNs, number)
				})
			}},
			field{"chap", false, func(n ast.Node) { a.CHAP = l.chap(n) }},
		)
		t.ISCSI.Access = append(t.ISCSI.Access, a)
	})
}

func (l *loader) chap(n ast.Node) *CHAP {
	c := &CHAP{}
	l.mapping(n, "chap",
		field{"user", true, l.str("user", "the name that the initiator gives", &c.User)},
		field{"secret", true, l.str("secret", "the initiator's secret", &c.Secret)},
		field{"target_user", false, l.str("target_user", "the name that the target gives", &c.TargetUser)},
		field{"target_secret", false, l.str("target_secret", "the target's secret", &c.TargetSecret)},
	)
	switch {
	case (c.TargetUser == "") != (c.TargetSecret == ""):
		l.fail(at(n), "chap has only one of target_user and target_secret; want both or neither")
	case c.Secret != "" && c.Secret == c.TargetSecret:
		l.fail(at(n), "chap has the same secret for both sides; want two different ones")
	}
	return c
}

func (l *loader) redirect(n ast.Node, t *Target) {
	r := &Redirect{}
	l.mapping(n, "redirect",
		field{"address", true, func(n ast.Node) {
			const want = "HOST:PORT such as 192.0.2.1:3260 or [2001:db8::1]:3260"
			l.str("address", want, &r.Address)(n)
			if _, port, err := net.SplitHostPort(r.Address); err != nil || port == "" {
				l.fail(at(n), "address is %q; want %s", r.Address, want)
			}
		}},
		field{"permanent", false, l.boolean("permanent", &r.Permanent)},
	)
	t.ISCSI.Redirect = r
}
