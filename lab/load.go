package lab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

const (
	maxFile = 1 << 20
	maxLUN  = 255
	maxLUNs = 4096 // in all

	// mostTransfer is the most bytes that max_transfer may be: as much as an iSCSI
	// target moves for one command (iscsi.MaxTransfer).
	mostTransfer = 32 << 20
)

// Load reads and checks a lab.yaml. Each thing that is wrong is a line of the
// error: file:line:column: what is wrong, and what would be right.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w; `lunlab example` prints one to begin with", err)
	}
	defer f.Close()
	return Read(path, f)
}

// Read is Load for a file that is open.
func Read(path string, r io.Reader) (*Config, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, err
	}
	return Parse(path, b)
}

// Parse is Load for a file that was read already. File stores are looked for
// from the folder of path.
func Parse(path string, b []byte) (*Config, error) { return parseOver(path, b, nil) }

// parseOver is Parse for a file that takes the place of one whose files are in use.
func parseOver(path string, b []byte, running map[string]bool) (*Config, error) {
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s:1:1: larger than 1 MiB: is it a lab.yaml?", path)
	}
	d := &decoder{path: path}
	root, err := parse(path, b)
	if err != nil {
		return nil, err
	}
	c := &Config{Path: path}
	l := loader{decoder: d, config: c, seen: map[string]map[string]pos{}, files: map[string]fileUse{}, running: running}
	l.root(root)
	if err := d.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// parse returns the file's only document.
func parse(path string, b []byte) (n ast.Node, err error) {
	defer func() {
		if p := recover(); p != nil {
			// The YAML parser is another's; what it can't take is not YAML.
			n, err = nil, fmt.Errorf("%s:1:1: not YAML (%v)", path, p)
		}
	}()
	f, err := parser.ParseBytes(b, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var se *yaml.SyntaxError
		if errors.As(err, &se) {
			p := tokenPos(se.GetToken())
			return nil, fmt.Errorf("%s:%d:%d: not YAML: %s", path, p.line, p.column, se.GetMessage())
		}
		msg, _, _ := strings.Cut(err.Error(), "\n")
		return nil, fmt.Errorf("%s:1:1: not YAML: %s", path, msg)
	}
	if len(f.Docs) > 1 {
		p := tokenPos(f.Docs[1].Start)
		return nil, fmt.Errorf("%s:%d:%d: a second document begins here; a lab.yaml has one", path, p.line, p.column)
	}
	if len(f.Docs) == 0 {
		return nil, nil
	}
	return f.Docs[0].Body, nil
}

// loader knows what the keys mean.
type loader struct {
	*decoder
	config *Config
	luns   int
	seen   map[string]map[string]pos // what has to be unique in the file, by what it is
	files  map[string]fileUse

	poolUses  []poolUse
	groupUses []groupUse
	running   map[string]bool // paths of files that are in use, whose sizes may differ
}

func (l *loader) root(n ast.Node) {
	l.mapping(n, "the file",
		field{"iscsi", false, l.iscsi},
		field{"pools", false, func(n ast.Node) { l.list(n, "pools", l.pool) }},
		field{"targets", true, func(n ast.Node) { l.list(n, "targets", l.target) }},
	)
	l.usePools()
	l.useGroups()
}

func (l *loader) iscsi(n ast.Node) {
	l.mapping(n, "iscsi",
		field{"listen", false, func(n ast.Node) { l.list(n, "listen", l.portal) }},
		field{"discovery_chap", false, func(n ast.Node) { l.config.ISCSI.DiscoveryCHAP = l.chap(n) }},
		field{"isns", false, func(n ast.Node) { l.config.ISCSI.ISNS = l.isns(n) }},
	)
}

// portal reads an address to listen on, alone or with its portal group.
func (l *loader) portal(n ast.Node) {
	p := Portal{Group: 1}
	address := func(n ast.Node) {
		const want = "ADDRESS:PORT such as 127.0.0.1:3260 or [::1]:3260"
		s, where, ok := l.scalar(n, "listen", want)
		if !ok {
			return
		}
		_, port, err := net.SplitHostPort(s)
		if _, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil {
			l.fail(where, "listen is %s; want %s", s, want)
			return
		}
		if port != "0" {
			l.unique("listen", s, where)
		}
		p.Address = s
	}
	switch l.resolve(n).(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		l.mapping(n, "a portal",
			field{"address", true, address},
			field{"group", false, integer(l.decoder, "group", 1, 65535, &p.Group)},
		)
	default:
		address(n)
	}
	l.config.ISCSI.Listen = append(l.config.ISCSI.Listen, p)
}

// groupUse is a place where a portal group is named: as a target port, of which every
// transport but iSCSI has the first alone, or as one to reach a target by.
type groupUse struct {
	pos
	group uint16
	port  bool
}

// useGroups looks for the portal groups that are named.
func (l *loader) useGroups() {
	var groups []uint16
	for _, p := range l.config.ISCSI.Listen {
		groups = append(groups, p.Group)
	}
	if len(groups) == 0 {
		groups = []uint16{1}
	}
	slices.Sort(groups)
	groups = slices.Compact(groups)
	for _, u := range l.groupUses {
		if u.group != 0 && !slices.Contains(groups, u.group) && !(u.port && u.group == 1) {
			l.fail(u.pos, "there is no portal group %d; those that iscsi listens for are %s", u.group, strings.Trim(fmt.Sprint(groups), "[]"))
		}
	}
}

var targetRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$`)

func (l *loader) target(n ast.Node) {
	t := &Target{}
	numbers := map[int]pos{}
	l.mapping(n, "a target",
		field{"name", true, func(n ast.Node) {
			const want = "1 to 32 letters, digits, '.', '_' or '-'"
			l.str("name", want, &t.Name)(n)
			if t.Name != "" && !targetRE.MatchString(t.Name) {
				l.fail(at(n), "name is %q; want %s", t.Name, want)
			}
			l.unique("name", t.Name, at(n))
		}},
		field{"limits", false, func(n ast.Node) {
			l.mapping(n, "limits",
				field{"can_queue", false, integer(l.decoder, "can_queue", 1, 10240, &t.Limits.CanQueue)},
				field{"cmd_per_lun", false, integer(l.decoder, "cmd_per_lun", 1, 10240, &t.Limits.CmdPerLUN)},
				field{"hw_queues", false, integer(l.decoder, "hw_queues", 1, 4096, &t.Limits.HWQueues)},
			)
		}},
		field{"loop", false, func(n ast.Node) {
			l.mapping(n, "loop",
				field{"wwn", false, l.wwn("wwn", &t.Loop.WWN)},
				field{"initiator", false, l.wwn("initiator", &t.Loop.Initiator)},
			)
		}},
		field{"iscsi", false, func(n ast.Node) {
			l.mapping(n, "iscsi",
				field{"name", false, func(n ast.Node) { l.iqn(n, &t.ISCSI.Name) }},
				field{"alias", false, l.str("alias", "a name for people", &t.ISCSI.Alias)},
				field{"access", false, func(n ast.Node) { l.access(n, t) }},
				field{"portal_groups", false, func(n ast.Node) {
					l.list(n, "portal_groups", func(n ast.Node) {
						group := uint16(0)
						integer(l.decoder, "portal_groups", 1, 65535, &group)(n)
						l.groupUses = append(l.groupUses, groupUse{at(n), group, false})
						t.ISCSI.PortalGroups = append(t.ISCSI.PortalGroups, group)
					})
				}},
				field{"redirect", false, func(n ast.Node) { l.redirect(n, t) }},
			)
		}},
		field{"vhost_user", false, func(n ast.Node) { l.vhostUser(n, t) }},
		field{"alua", false, func(n ast.Node) { t.ALUA = l.alua(n) }},
		field{"luns", true, func(n ast.Node) {
			l.list(n, "luns", func(n ast.Node) { l.lun(n, t, numbers) })
		}},
	)
	l.fitsVhostUser(t, at(n))
	l.config.Targets = append(l.config.Targets, t)
}

// unique complains of a value that was there before.
func (l *loader) unique(what, value string, where pos) {
	if value == "" {
		return
	}
	if l.seen[what] == nil {
		l.seen[what] = map[string]pos{}
	}
	if first, ok := l.seen[what][value]; ok {
		l.fail(where, "%s %s is taken already, in line %d; it has to be unique", what, value, first.line)
		return
	}
	l.seen[what][value] = where
}

var wwnRE = regexp.MustCompile(`^naa\.[0-9a-fA-F]{16}$`)

func (l *loader) wwn(key string, v *string) func(ast.Node) {
	const want = "naa. and 16 hexadecimal digits, such as naa.5001405000000101"
	return func(n ast.Node) {
		s, where, ok := l.scalar(n, key, want)
		if !ok {
			return
		}
		if !wwnRE.MatchString(s) {
			l.fail(where, "%s is %s; want %s", key, s, want)
			return
		}
		*v = strings.ToLower(s)
		l.unique("wwn", *v, where)
	}
}

var iqnRE = regexp.MustCompile(`^(iqn\.\d{4}-\d{2}\.[a-z0-9.-]+(:[a-z0-9.:-]+)?|eui\.[0-9A-Fa-f]{16}|naa\.[0-9A-Fa-f]{16}([0-9A-Fa-f]{16})?)$`)

func (l *loader) iqn(n ast.Node, v *string) {
	const want = "an iSCSI name in lower case, such as iqn.2026-01.example.lunlab:disks"
	s, where, ok := l.scalar(n, "name", want)
	if !ok {
		return
	}
	if !iqnRE.MatchString(s) || len(s) > 223 {
		l.fail(where, "name is %s; want %s", s, want)
		return
	}
	*v = s
	l.unique("iSCSI name", s, where)
}
