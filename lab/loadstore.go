package lab

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"lunlab/lun/store/nbd"
)

// fileUse is the use of a file, or of anything else that one LUN has for itself.
type fileUse struct {
	pos
	readOnly bool
}

// storeKeys are the keys that a store of a kind may have beside kind.
var storeKeys = map[StoreKind][]string{
	Memory: {"size", "limit", "exhaustion", "pool", "cache"},
	File:   {"path", "size", "direct", "cache"},
	Null:   {"size", "cache"},
	NBD:    {"address", "connections", "timeout", "reconnect", "tls", "cache"},
}

const wantKind = `mem, file, nbd or "null"`

// store reads a store. It returns where the key is that makes it a thin LUN's.
func (l *loader) store(n ast.Node, s *Store) (thin pos) {
	s.at = at(n)
	where := map[string]pos{}
	noted := func(key string, read func(ast.Node)) field {
		return field{key, key == "kind", func(n ast.Node) { where[key] = at(n); read(n) }}
	}
	l.mapping(n, "store",
		noted("kind", func(n ast.Node) { l.storeKind(n, &s.Kind) }),
		noted("size", l.size("size", &s.Size)),
		noted("limit", l.size("limit", &s.Limit)),
		noted("exhaustion", func(n ast.Node) { l.exhaustion(n, &s.Temporary) }),
		noted("pool", func(n ast.Node) {
			l.str("pool", "the name of a pool", &s.Pool)(n)
			l.poolUses = append(l.poolUses, poolUse{at(n), s.Pool})
		}),
		noted("path", l.str("path", "the path of a file or block device", &s.Path)),
		noted("direct", l.boolean("direct", &s.Direct)),
		noted("address", func(n ast.Node) { l.address(n, &s.Address) }),
		noted("connections", integer(l.decoder, "connections", 1, nbd.MaxConnections, &s.Connections)),
		noted("timeout", l.duration("timeout", &s.Timeout)),
		noted("reconnect", l.duration("reconnect", &s.Reconnect)),
		noted("tls", func(n ast.Node) { s.TLS = l.tls(n) }),
		noted("cache", l.size("cache", &s.Cache)),
	)
	allowed := storeKeys[s.Kind]
	for key, p := range where {
		if key != "kind" && allowed != nil && !slices.Contains(allowed, key) {
			l.fail(p, "a %s store has no %s; its keys are kind, %s", s.Kind, key, strings.Join(allowed, ", "))
		}
	}
	if p, ok := where["limit"]; ok && s.Pool != "" {
		l.fail(p, "a store in a pool has no limit of its own; give the pool a size, or leave pool out")
	}
	if p, ok := where["exhaustion"]; ok && s.Kind == Memory && s.Limit == 0 {
		l.fail(p, "exhaustion is for a store with a limit of its own; give it one, or the pool the exhaustion")
	}
	switch s.Kind {
	case Memory, Null:
		if _, ok := where["size"]; !ok {
			l.fail(s.at, "the store has no size; want %s", wantSize)
		}
	case File:
		if _, ok := where["path"]; !ok {
			l.fail(s.at, "the store has no path; want that of a file or block device")
		} else if s.Path != "" {
			l.file(s, where["path"])
		}
	case NBD:
		if _, ok := where["address"]; !ok {
			l.fail(s.at, "the store has no address; want %s", nbd.WantAddress)
		}
		if p, ok := where["tls"]; ok && s.Address != "" && !strings.HasPrefix(s.Address, "nbds") {
			l.fail(p, "tls is for an address that begins with nbds; make it one, or leave tls out")
		}
	}
	return cmp.Or(where["limit"], where["pool"])
}

func (l *loader) storeKind(n ast.Node, v *StoreKind) {
	if _, ok := n.(*ast.NullNode); ok {
		*v = Null // as it reads without its quotation marks
		return
	}
	var kind string
	l.str("kind", wantKind, &kind)(n)
	*v = StoreKind(kind)
	if kind != "" && storeKeys[*v] == nil {
		l.fail(at(n), "kind is %s; want %s", kind, wantKind)
	}
}

// fromHere is a path that may be relative to the folder of the file.
func (l *loader) fromHere(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(l.path), path)
}

// folder complains if the folder isn't there that a file is to be made in.
func (l *loader) folder(where pos, path, what string) {
	if fi, err := os.Stat(filepath.Dir(path)); err != nil || !fi.IsDir() {
		l.fail(where, "there is no folder %s for %s; make it", filepath.Dir(path), what)
	}
}

// file looks whether a file is there, or could be made.
func (l *loader) file(s *Store, where pos) {
	s.Path = l.fromHere(s.Path)
	fi, err := os.Stat(s.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && s.Size == 0:
		l.fail(where, "there is no file %s; make it, or give a size to have it made", s.Path)
	case errors.Is(err, fs.ErrNotExist):
		l.folder(where, s.Path, "the file")
	case err != nil:
		l.fail(where, "%v", err)
	case fi.IsDir():
		l.fail(where, "%s is a folder; want a file or block device", s.Path)
	case fi.Mode().IsRegular() && s.Size != 0 && fi.Size() != 0 && fi.Size() != s.Size && !l.running[s.Path]:
		l.fail(where, "%s has %d bytes and not the %d of size; leave size out to take the file as it is", s.Path, fi.Size(), s.Size)
	}
}

func (l *loader) address(n ast.Node, v *string) {
	l.str("address", nbd.WantAddress, v)(n)
	if *v == "" {
		return
	}
	if err := nbd.CheckAddress(*v); err != nil {
		l.fail(at(n), "%v; want %s", err, nbd.WantAddress)
	}
}

// tls reads how an NBD server is known, and how it knows us.
func (l *loader) tls(n ast.Node) *TLS {
	t := &TLS{}
	path := func(key, want string, v *string) field {
		return field{key, false, func(n ast.Node) {
			l.str(key, want, v)(n)
			if *v == "" {
				return
			}
			*v = l.fromHere(*v)
			if _, err := os.Stat(*v); err != nil {
				l.fail(at(n), "%s: %v", key, err)
			}
		}}
	}
	l.mapping(n, "tls",
		path("ca", "the path of certificates in PEM", &t.CA),
		path("cert", "the path of a certificate in PEM", &t.Cert),
		path("key", "the path of its key in PEM", &t.Key),
		field{"server_name", false, l.str("server_name", "a host name", &t.ServerName)},
	)
	if (t.Cert == "") != (t.Key == "") {
		l.fail(at(n), "tls has only one of cert and key; want both or neither")
	}
	return t
}

// poolUse is a place where a pool is named.
type poolUse struct {
	pos
	name string
}

func (l *loader) pool(n ast.Node) {
	p := &Pool{}
	l.mapping(n, "a pool",
		field{"name", true, func(n ast.Node) {
			l.str("name", "a name", &p.Name)(n)
			l.unique("pool", p.Name, at(n))
		}},
		field{"size", true, l.size("size", &p.Size)},
		field{"exhaustion", false, func(n ast.Node) { l.exhaustion(n, &p.Temporary) }},
	)
	l.config.Pools = append(l.config.Pools, p)
}

// exhaustion reads whether there will be more room where there is none.
func (l *loader) exhaustion(n ast.Node, temporary *bool) {
	const want = "permanent or temporary"
	s, where, ok := l.scalar(n, "exhaustion", want)
	if !ok {
		return
	}
	if s != "permanent" && s != "temporary" {
		l.fail(where, "exhaustion is %s; want %s", s, want)
	}
	*temporary = s == "temporary"
}

// usePools looks for the pools that stores are in.
func (l *loader) usePools() {
	var names []string
	for _, p := range l.config.Pools {
		names = append(names, p.Name)
	}
	for _, u := range l.poolUses {
		if u.name == "" || slices.Contains(names, u.name) {
			continue
		}
		want := "put one into pools"
		if len(names) > 0 {
			want = fmt.Sprintf("those in pools are %s", strings.Join(names, ", "))
		}
		l.fail(u.pos, "there is no pool %s; %s", u.name, want)
	}
}
