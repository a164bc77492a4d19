package lab

import (
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"lunlab/lun"
)

// ALUA says by which portal groups a LUN is reached how well (asymmetric logical
// unit access).
type ALUA struct {
	Explicit bool // initiators may change states
	Groups   []lun.PortGroup
}

var accessStates = map[string]lun.AccessState{
	"active-optimized": lun.ActiveOptimized, "active-nonoptimized": lun.ActiveNonOptimized,
	"standby": lun.Standby, "unavailable": lun.Unavailable, "transitioning": lun.Transitioning,
}

func (l *loader) alua(n ast.Node) *ALUA {
	a := &ALUA{}
	ids, ports := map[uint16]pos{}, map[uint16]pos{}
	l.mapping(n, "alua",
		field{"explicit", false, l.boolean("explicit", &a.Explicit)},
		field{"groups", true, func(n ast.Node) {
			l.list(n, "groups", func(n ast.Node) { a.Groups = append(a.Groups, l.portGroup(n, ids, ports)) })
		}},
	)
	return a
}

// portGroup reads a target port group. Its ports are the iSCSI portal groups: a
// target port is one of them.
func (l *loader) portGroup(n ast.Node, ids, ports map[uint16]pos) lun.PortGroup {
	g := lun.PortGroup{}
	once := func(seen map[uint16]pos, what string, v uint16, where pos) {
		if first, ok := seen[v]; ok && v != 0 {
			l.fail(where, "%s %d is there already, in line %d; it has to be unique", what, v, first.line)
			return
		}
		seen[v] = where
	}
	l.mapping(n, "a group",
		field{"id", true, func(n ast.Node) {
			integer(l.decoder, "id", 1, 65535, &g.ID)(n)
			once(ids, "group", g.ID, at(n))
		}},
		field{"portal_groups", true, func(n ast.Node) {
			l.list(n, "portal_groups", func(n ast.Node) {
				port := uint16(0)
				integer(l.decoder, "portal_groups", 1, 65535, &port)(n)
				once(ports, "portal group", port, at(n))
				l.groupUses = append(l.groupUses, groupUse{at(n), port, true})
				g.Ports = append(g.Ports, port)
			})
			if len(g.Ports) > 255 {
				l.fail(at(n), "portal_groups has %d items; want up to 255", len(g.Ports))
			}
		}},
		field{"state", false, func(n ast.Node) {
			want := strings.Join(slices.Sorted(maps.Keys(accessStates)), ", ")
			s, where, ok := l.scalar(n, "state", want)
			if !ok {
				return
			}
			if g.State, ok = accessStates[s]; !ok {
				l.fail(where, "state is %s; want one of %s", s, want)
			}
		}},
		field{"preferred", false, l.boolean("preferred", &g.Preferred)},
	)
	return g
}
