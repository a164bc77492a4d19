package lab

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"lunlab/lun"
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
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	return Parse(path, b)
}

// Parse is Load for a file that was read already. File stores are looked for
// from the folder of path.
func Parse(path string, b []byte) (*Config, error) {
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s:1:1: larger than 1 MiB: is it a lab.yaml?", path)
	}
	d := &decoder{path: path}
	root, err := parse(path, b)
	if err != nil {
		return nil, err
	}
	c := &Config{Path: path}
	l := loader{decoder: d, config: c, serials: map[string]pos{}, naas: map[string]pos{}, files: map[string]fileUse{}, wwns: map[string]pos{}, iqns: map[string]pos{}}
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
	config  *Config
	luns    int
	serials map[string]pos
	naas    map[string]pos
	files   map[string]fileUse
	wwns    map[string]pos
	iqns    map[string]pos
}

type fileUse struct {
	pos
	readOnly bool
}

func (l *loader) root(n ast.Node) {
	l.mapping(n, "the file",
		field{"iscsi", false, l.iscsi},
		field{"targets", true, func(n ast.Node) {
			names := map[string]pos{}
			l.list(n, "targets", func(n ast.Node) { l.target(n, names) })
		}},
	)
}

func (l *loader) iscsi(n ast.Node) {
	l.mapping(n, "iscsi", field{"listen", false, func(n ast.Node) {
		l.list(n, "listen", func(n ast.Node) {
			const want = "ADDRESS:PORT such as 127.0.0.1:3260 or [::1]:3260"
			s, where, ok := l.scalar(n, "listen", want)
			if !ok {
				return
			}
			_, port, err := net.SplitHostPort(s)
			if p, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || p > 65535 {
				l.fail(where, "listen is %s; want %s", s, want)
				return
			}
			l.config.ISCSI.Listen = append(l.config.ISCSI.Listen, s)
		})
	}}, field{"discovery_chap", false, func(n ast.Node) { l.config.ISCSI.DiscoveryCHAP = l.chap(n) }},
		field{"isns", false, func(n ast.Node) { l.config.ISCSI.ISNS = l.isns(n) }})
}

var targetRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$`)

func (l *loader) target(n ast.Node, names map[string]pos) {
	t := &Target{}
	numbers := map[int]pos{}
	l.mapping(n, "a target",
		field{"name", true, func(n ast.Node) {
			const want = "1 to 32 letters, digits, '.', '_' or '-'"
			l.str("name", want, &t.Name)(n)
			if t.Name != "" && !targetRE.MatchString(t.Name) {
				l.fail(at(n), "name is %q; want %s", t.Name, want)
			}
			l.unique(names, "name", t.Name, at(n))
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
				field{"redirect", false, func(n ast.Node) { l.redirect(n, t) }},
			)
		}},
		field{"luns", true, func(n ast.Node) {
			l.list(n, "luns", func(n ast.Node) { l.lun(n, t, numbers) })
		}},
	)
	l.config.Targets = append(l.config.Targets, t)
}

// unique complains of a value that was there before.
func (l *loader) unique(seen map[string]pos, key, value string, where pos) {
	if value == "" {
		return
	}
	if first, ok := seen[value]; ok {
		l.fail(where, "%s %s is taken already, in line %d; it has to be unique", key, value, first.line)
		return
	}
	seen[value] = where
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
		l.unique(l.wwns, key, *v, where)
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
	l.unique(l.iqns, "iSCSI name", s, where)
}

// lun reads a LUN, or as many as its count says.
func (l *loader) lun(n ast.Node, t *Target, numbers map[int]pos) {
	u := &LUN{at: at(n)}
	count := 1
	writeCache := true
	physical := int64(0)
	maxTransfer := int64(0)
	where := map[string]pos{}
	noted := func(key string, read func(ast.Node)) field {
		return field{key, key == "lun" || key == "store", func(n ast.Node) { where[key] = at(n); read(n) }}
	}
	d := l.decoder
	l.mapping(n, "a LUN",
		noted("lun", integer(d, "lun", 0, maxLUN, &u.Number)),
		noted("count", integer(d, "count", 1, maxLUN+1, &count)),
		noted("store", func(n ast.Node) { l.store(n, &u.Store) }),
		noted("block_size", func(n ast.Node) {
			integer(d, "block_size", 512, 4096, &u.BlockSize)(n)
			if u.BlockSize != 0 && u.BlockSize != 512 && u.BlockSize != 4096 {
				l.fail(at(n), "block_size is %d; want 512 or 4096", u.BlockSize)
			}
		}),
		noted("physical_block_size", d.size("physical_block_size", &physical)),
		noted("lowest_aligned", integer(d, "lowest_aligned", 0, 0x3fff, &u.LowestAligned)),
		noted("vendor", d.ascii("vendor", 8, &u.Vendor)),
		noted("product", d.ascii("product", 16, &u.Product)),
		noted("revision", d.ascii("revision", 4, &u.Revision)),
		noted("serial", d.ascii("serial", 64, &u.Serial)),
		noted("naa", func(n ast.Node) { l.naa(n, &u.NAA) }),
		noted("thin", d.boolean("thin", &u.Thin)),
		noted("unmap_by", func(n ast.Node) { l.unmapBy(n, &u.UnmapBy) }),
		noted("protection", func(n ast.Node) {
			integer(d, "protection", 0, 3, &u.Protection)(n)
			u.Protectable = true
		}),
		noted("read_only", d.boolean("read_only", &u.ReadOnly)),
		noted("write_cache", d.boolean("write_cache", &writeCache)),
		noted("removable", d.boolean("removable", &u.Removable)),
		noted("rotation_rate", integer(d, "rotation_rate", 1, 0xfffe, &u.RotationRate)),
		noted("max_transfer", d.size("max_transfer", &maxTransfer)),
		noted("erase_time", d.duration("erase_time", &u.EraseTime)),
		noted("faults", func(n ast.Node) { l.faults(n, &u.Faults) }),
	)
	u.WriteThrough = !writeCache
	u.MaxTransfer = uint64(maxTransfer)
	block := int64(u.BlockSize)
	if block == 0 {
		block = 512
	}
	if physical != 0 {
		for u.PhysicalExponent < 15 && block<<u.PhysicalExponent < physical {
			u.PhysicalExponent++
		}
		if block<<u.PhysicalExponent != physical {
			l.fail(where["physical_block_size"], "physical_block_size is %d; want block_size (%d) times a power of two, up to 32768", physical, block)
		}
	}
	if maxTransfer%block != 0 || maxTransfer > mostTransfer {
		l.fail(where["max_transfer"], "max_transfer is %d bytes; want a number of %d-byte blocks, up to 32MiB", maxTransfer, block)
	}
	if s := u.Store; s.Size%block != 0 {
		l.fail(s.at, "the store has %d bytes; want a number of %d-byte blocks", s.Size, block)
	}
	if u.UnmapBy != 0 && !u.Thin {
		l.fail(where["unmap_by"], "unmap_by is for a LUN that is thin; set thin: true, or leave it out")
	}
	l.shared(u, count, where)
	l.expand(u, count, t, numbers, where)
}

// shared checks what may be there only once.
func (l *loader) shared(u *LUN, count int, where map[string]pos) {
	if count > 1 {
		for _, key := range []string{"serial", "naa"} {
			if p, ok := where[key]; ok {
				l.fail(p, "%s can't be the same for %d LUNs; leave it out, or write the LUNs out one by one", key, count)
			}
		}
		if u.Store.Kind == File {
			l.fail(u.Store.at, "%d LUNs can't lie in one file; write them out one by one", count)
		}
	}
	l.unique(l.serials, "serial", u.Serial, where["serial"])
	l.unique(l.naas, "naa", hex.EncodeToString(u.NAA), where["naa"])
	if u.Store.Kind != File || u.Store.Path == "" {
		return
	}
	abs, err := filepath.Abs(u.Store.Path)
	if err != nil {
		abs = u.Store.Path
	}
	if first, ok := l.files[abs]; ok && !(first.readOnly && u.ReadOnly) {
		l.fail(u.Store.at, "file %s is another LUN's already, in line %d; only LUNs that are all read_only can share one", u.Store.Path, first.line)
	} else {
		l.files[abs] = fileUse{u.Store.at, u.ReadOnly}
	}
}

// expand adds the LUN to the target, count times.
func (l *loader) expand(u *LUN, count int, t *Target, numbers map[int]pos, where map[string]pos) {
	for i := range count {
		c := *u
		c.Number += i
		if c.Number > maxLUN {
			l.fail(where["count"], "count is %d; LUNs from %d on end at %d", count, u.Number, maxLUN)
			return
		}
		if first, ok := numbers[c.Number]; ok {
			l.fail(where["lun"], "LUN %d is there already, in line %d; it has to be unique in its target", c.Number, first.line)
			return
		}
		if l.luns++; l.luns > maxLUNs {
			l.fail(u.at, "more than %d LUNs", maxLUNs)
			return
		}
		if p, ok := where["lun"]; ok {
			numbers[c.Number] = p
		}
		t.LUNs = append(t.LUNs, &c)
	}
}

var unmappings = map[string]lun.Unmapping{
	"unmap": lun.ByUnmap, "write_same_16": lun.ByWriteSame16, "write_same_10": lun.ByWriteSame10,
}

func (l *loader) unmapBy(n ast.Node, v *lun.Unmapping) {
	const want = "unmap, write_same_16 or write_same_10"
	l.list(n, "unmap_by", func(n ast.Node) {
		s, where, ok := l.scalar(n, "unmap_by", want)
		if !ok {
			return
		}
		u, ok := unmappings[s]
		if !ok {
			l.fail(where, "unmap_by is %s; want %s", s, want)
		}
		*v |= u
	})
}

func (l *loader) naa(n ast.Node, v *[]byte) {
	const want = "16 hexadecimal digits that begin with 2, 3 or 5, or 32 that begin with 6"
	s, where, ok := l.scalar(n, "naa", want)
	if !ok {
		return
	}
	digits := strings.TrimPrefix(strings.TrimPrefix(strings.ToLower(s), "naa."), "0x")
	b, err := hex.DecodeString(digits)
	if err != nil || !(len(b) == 8 && strings.ContainsAny(digits[:1], "235") || len(b) == 16 && digits[0] == '6') {
		l.fail(where, "naa is %s; want %s", s, want)
		return
	}
	*v = b
}

func (l *loader) store(n ast.Node, s *Store) {
	s.at = at(n)
	var kind string
	where := map[string]pos{}
	noted := func(key string, read func(ast.Node)) field {
		return field{key, key == "kind", func(n ast.Node) { where[key] = at(n); read(n) }}
	}
	l.mapping(n, "store",
		noted("kind", func(n ast.Node) {
			const want = `mem, file or "null"`
			if _, ok := n.(*ast.NullNode); ok {
				kind = string(Null) // as it reads without its quotation marks
				return
			}
			l.str("kind", want, &kind)(n)
			if k := StoreKind(kind); kind != "" && k != Memory && k != File && k != Null {
				l.fail(at(n), "kind is %s; want %s", kind, want)
			}
		}),
		noted("size", l.size("size", &s.Size)),
		noted("limit", l.size("limit", &s.Limit)),
		noted("path", l.str("path", "the path of a file or block device", &s.Path)),
		noted("direct", l.boolean("direct", &s.Direct)),
	)
	s.Kind = StoreKind(kind)
	allowed := map[StoreKind][]string{Memory: {"size", "limit"}, File: {"path", "size", "direct"}, Null: {"size"}}[s.Kind]
	for key, p := range where {
		if key != "kind" && allowed != nil && !slices.Contains(allowed, key) {
			l.fail(p, "a %s store has no %s; its keys are kind, %s", s.Kind, key, strings.Join(allowed, ", "))
		}
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
	}
}

// file looks whether a file is there, or could be made.
func (l *loader) file(s *Store, where pos) {
	if !filepath.IsAbs(s.Path) {
		s.Path = filepath.Join(filepath.Dir(l.path), s.Path)
	}
	fi, err := os.Stat(s.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && s.Size == 0:
		l.fail(where, "there is no file %s; make it, or give a size to have it made", s.Path)
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(filepath.Dir(s.Path)); err != nil {
			l.fail(where, "there is no folder %s for the file; make it", filepath.Dir(s.Path))
		}
	case err != nil:
		l.fail(where, "%v", err)
	case fi.IsDir():
		l.fail(where, "%s is a folder; want a file or block device", s.Path)
	case fi.Mode().IsRegular() && s.Size != 0 && fi.Size() != 0 && fi.Size() != s.Size:
		l.fail(where, "%s has %d bytes and not the %d of size; leave size out to take the file as it is", s.Path, fi.Size(), s.Size)
	}
}
