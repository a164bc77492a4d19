package lab

import (
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// ISNS says where iSCSI targets are registered, so that initiators find them.
type ISNS struct {
	Server    string // HOST or HOST:PORT
	Entity    string // "": made from the host's name
	Inquiries bool   // the server may ask whether the portals are still there
}

func (l *loader) isns(n ast.Node) *ISNS {
	const want = "HOST or HOST:PORT of an iSNS server, such as 192.0.2.9"
	s := &ISNS{}
	l.mapping(n, "isns",
		field{"server", true, func(n ast.Node) {
			l.str("server", want, &s.Server)(n)
			if strings.ContainsAny(s.Server, " /") {
				l.fail(at(n), "server is %q; want %s", s.Server, want)
			}
		}},
		field{"entity", false, l.ascii("entity", 255, &s.Entity)},
		field{"inquiries", false, l.boolean("inquiries", &s.Inquiries)},
	)
	return s
}
