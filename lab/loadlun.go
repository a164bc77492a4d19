package lab

import (
	"encoding/hex"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"lunlab/lun"
)

// lun reads a LUN, or as many as its count says.
func (l *loader) lun(n ast.Node, t *Target, numbers map[int]pos) {
	u := &LUN{at: at(n)}
	count := 1
	writeCache, lbprz := true, true
	physical := int64(0)
	maxTransfer := int64(0)
	var room pos
	where := map[string]pos{}
	noted := func(key string, read func(ast.Node)) field {
		return field{key, key == "lun" || key == "store", func(n ast.Node) { where[key] = at(n); read(n) }}
	}
	d := l.decoder
	l.mapping(n, "a LUN",
		noted("lun", integer(d, "lun", 0, maxLUN, &u.Number)),
		noted("count", integer(d, "count", 1, maxLUN+1, &count)),
		noted("store", func(n ast.Node) { room = l.store(n, &u.Store) }),
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
		noted("eui", func(n ast.Node) { l.eui(n, &u.EUI) }),
		noted("thin", d.boolean("thin", &u.Thin)),
		noted("lbprz", d.boolean("lbprz", &lbprz)),
		noted("soft_threshold", d.size("soft_threshold", &u.SoftThreshold)),
		noted("unmap_by", func(n ast.Node) { l.unmapBy(n, &u.UnmapBy) }),
		noted("protection", func(n ast.Node) {
			integer(d, "protection", 0, 3, &u.Protection)(n)
			u.Protectable = true
		}),
		noted("read_only", d.boolean("read_only", &u.ReadOnly)),
		noted("write_cache", d.boolean("write_cache", &writeCache)),
		noted("removable", d.boolean("removable", &u.Removable)),
		noted("rotation_rate", integer(d, "rotation_rate", 1, 0xfffe, &u.RotationRate)),
		noted("form_factor", func(n ast.Node) { l.formFactor(n, &u.FormFactor) }),
		noted("streams", integer(d, "streams", 2, 64, &u.Streams)),
		noted("ata", func(n ast.Node) { u.ATA = l.ata(n) }),
		noted("zones", func(n ast.Node) { u.Zones = l.zones(n) }),
		noted("alua", func(n ast.Node) { u.ALUA = l.alua(n) }),
		noted("state", func(n ast.Node) { l.state(n, &u.State) }),
		noted("max_transfer", d.size("max_transfer", &maxTransfer)),
		noted("erase_time", d.duration("erase_time", &u.EraseTime)),
		noted("short_commands", d.boolean("short_commands", &u.ShortCommands)),
		noted("faults", func(n ast.Node) { l.faults(n, &u.Faults) }),
	)
	u.WriteThrough, u.Unzeroed = !writeCache, !lbprz
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
	if u.LowestAligned >= 1<<u.PhysicalExponent {
		l.fail(where["lowest_aligned"], "lowest_aligned is %d; want a block of the first physical one, which has %d", u.LowestAligned, 1<<u.PhysicalExponent)
	}
	if room != (pos{}) && !u.Thin {
		l.fail(room, "a limit or a pool is for the store of a LUN that is thin; set thin: true, or leave it out")
	}
	if maxTransfer%block != 0 || maxTransfer > mostTransfer {
		l.fail(where["max_transfer"], "max_transfer is %d bytes; want a number of %d-byte blocks, up to 32MiB", maxTransfer, block)
	}
	if s := u.Store; s.Size%block != 0 {
		l.fail(s.at, "the store has %d bytes; want a number of %d-byte blocks", s.Size, block)
	}
	for _, key := range []string{"unmap_by", "lbprz", "soft_threshold"} {
		if p, ok := where[key]; ok && !u.Thin {
			l.fail(p, "%s is for a LUN that is thin; set thin: true, or leave it out", key)
		}
	}
	if p, ok := where["soft_threshold"]; ok && u.Thin && u.Store.Limit == 0 && u.Store.Pool == "" {
		l.fail(p, "soft_threshold is for a store whose room is limited; give it a limit or a pool, or leave soft_threshold out")
	}
	l.checkZones(u, block)
	l.checkATA(u, where)
	l.shared(u, count, where)
	l.expand(u, count, t, numbers, where)
}

// shared checks what may be there only once.
func (l *loader) shared(u *LUN, count int, where map[string]pos) {
	if count > 1 {
		for _, key := range []string{"serial", "naa", "eui", "state"} {
			if p, ok := where[key]; ok {
				l.fail(p, "%s can't be the same for %d LUNs; leave it out, or write the LUNs out one by one", key, count)
			}
		}
		if u.Store.Kind == File || u.Store.Kind == NBD {
			l.fail(u.Store.at, "%d LUNs can't lie in one %s; write them out one by one", count, map[StoreKind]string{File: "file", NBD: "export"}[u.Store.Kind])
		}
	}
	l.unique("serial", u.Serial, where["serial"])
	l.unique("naa", hex.EncodeToString(u.NAA), where["naa"])
	l.unique("eui", hex.EncodeToString(u.EUI), where["eui"])
	l.unique("state file", u.State, where["state"])
	lies, what := u.Store.Address, "export"
	if u.Store.Kind == File {
		lies, what = u.Store.Path, "file"
		if abs, err := filepath.Abs(lies); err == nil && lies != "" {
			lies = abs
		}
	}
	if first, ok := l.files[lies]; ok && lies != "" && !(first.readOnly && u.ReadOnly) {
		l.fail(u.Store.at, "%s %s is another LUN's already, in line %d; only LUNs that are all read_only can share one", what, lies, first.line)
		return
	}
	l.files[lies] = fileUse{u.Store.at, u.ReadOnly}
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

func (l *loader) eui(n ast.Node, v *[]byte) {
	const want = "16, 24 or 32 hexadecimal digits"
	s, where, ok := l.scalar(n, "eui", want)
	if !ok {
		return
	}
	b, err := hex.DecodeString(strings.TrimPrefix(strings.TrimPrefix(strings.ToLower(s), "eui."), "0x"))
	if err != nil || len(b) != 8 && len(b) != 12 && len(b) != 16 {
		l.fail(where, "eui is %s; want %s", s, want)
		return
	}
	*v = b
}

// formFactors are those of SBC-4 6.6.2, in inches.
var formFactors = map[string]uint8{"5.25": 1, "3.5": 2, "2.5": 3, "1.8": 4, "<1.8": 5}

func (l *loader) formFactor(n ast.Node, v *uint8) {
	want := "one of, in inches: " + strings.Join(slices.Sorted(maps.Keys(formFactors)), ", ")
	s, where, ok := l.scalar(n, "form_factor", want)
	if !ok {
		return
	}
	f, ok := formFactors[s]
	if !ok {
		l.fail(where, "form_factor is %s; want %s", s, want)
	}
	*v = f
}

// state reads where a LUN keeps what outlives a restart.
func (l *loader) state(n ast.Node, v *string) {
	l.str("state", "the path of a file", v)(n)
	if *v == "" {
		return
	}
	*v = l.fromHere(*v)
	l.folder(at(n), *v, "the state")
}

func (l *loader) zones(n ast.Node) *Zones {
	z := &Zones{at: at(n)}
	l.mapping(n, "zones",
		field{"size", true, l.size("size", &z.Size)},
		field{"conventional", false, integer(l.decoder, "conventional", 0, 1<<20, &z.Conventional)},
		field{"max_open", false, integer(l.decoder, "max_open", 1, 1<<20, &z.MaxOpen)},
		field{"host_aware", false, l.boolean("host_aware", &z.HostAware)},
	)
	return z
}

// checkZones looks whether a LUN can have the zones that it is to have.
func (l *loader) checkZones(u *LUN, block int64) {
	z := u.Zones
	if z == nil || z.Size == 0 {
		return
	}
	each := z.Size
	if u.Store.blocking() {
		each += lun.ZoneOverhead
	}
	switch zones := u.Store.Size / each; {
	case z.Size%block != 0:
		l.fail(z.at, "zones have %d bytes; want a number of %d-byte blocks", z.Size, block)
	case u.Thin || u.Protectable:
		l.fail(z.at, "a zoned LUN can be neither thin nor have protection; leave them out")
	case u.Store.Size > 0 && (zones == 0 || zones > 1<<20):
		l.fail(z.at, "zones of %d bytes in a store of %d make %d zones; want 1 to %d", each, u.Store.Size, zones, 1<<20)
	case u.Store.Size > 0 && int64(z.Conventional) > zones:
		l.fail(z.at, "%d conventional zones of %d; want as many at the most", z.Conventional, zones)
	}
}
