package lab

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// maxErrors bounds what is said about one file.
const maxErrors = 20

// decoder walks a YAML tree and gathers what is wrong with it.
type decoder struct {
	path    string
	errs    []posError
	anchors map[string]ast.Node
	depth   int
}

// posError is a complaint about a place in the file.
type posError struct {
	pos
	msg string
}

func (d *decoder) fail(at pos, format string, args ...any) {
	d.errs = append(d.errs, posError{at, fmt.Sprintf(format, args...)})
}

// err joins the complaints, in the order of the file.
func (d *decoder) err() error {
	slices.SortStableFunc(d.errs, func(a, b posError) int {
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.column, b.column))
	})
	var errs []error
	for i, e := range d.errs {
		if i == maxErrors {
			errs = append(errs, fmt.Errorf("%s: and %d more", d.path, len(d.errs)-i))
			break
		}
		errs = append(errs, fmt.Errorf("%s:%d:%d: %s", d.path, e.line, e.column, e.msg))
	}
	return errors.Join(errs...)
}

func tokenPos(t *token.Token) pos {
	if t == nil || t.Position == nil {
		return pos{1, 1}
	}
	return pos{max(1, t.Position.Line), max(1, t.Position.Column)}
}

// at is where a node begins: a mapping at its first key, not at its first colon.
func at(n ast.Node) pos {
	switch n := n.(type) {
	case nil:
		return pos{1, 1}
	case *ast.MappingNode:
		if len(n.Values) > 0 && !n.IsFlowStyle {
			return at(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return at(n.Key)
	}
	return tokenPos(n.GetToken())
}

// resolve follows anchors and aliases. It returns nil, with a complaint, for
// what it can't follow.
func (d *decoder) resolve(n ast.Node) ast.Node {
	for range 32 {
		switch v := n.(type) {
		case *ast.AnchorNode:
			if d.anchors == nil {
				d.anchors = map[string]ast.Node{}
			}
			d.anchors[scalarText(v.Name)] = v.Value
			n = v.Value
		case *ast.AliasNode:
			name := scalarText(v.Value)
			t, ok := d.anchors[name]
			if !ok {
				d.fail(at(n), "no anchor &%s comes before this", name)
				return nil
			}
			n = t
		case *ast.TagNode:
			d.fail(at(n), "tag %s: tags have no meaning here, leave it out", v.GetToken().Value)
			return nil
		default:
			return n
		}
	}
	d.fail(at(n), "anchors refer to each other without end")
	return nil
}

func scalarText(n ast.Node) string {
	switch n := n.(type) {
	case nil:
		return ""
	case *ast.LiteralNode:
		return n.Value.Value
	case *ast.StringNode:
		return n.Value
	}
	return n.GetToken().Value
}

// kind names a node in messages.
func kind(n ast.Node) string {
	switch n := n.(type) {
	case nil, *ast.NullNode:
		return "nothing"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		if len(n.Values) == 0 {
			return "an empty list"
		}
		return "a list"
	}
	return strconv.Quote(scalarText(n))
}

// field is a key of a mapping.
type field struct {
	name     string
	required bool
	read     func(n ast.Node)
}

// mapping reads a mapping that has no other keys than fields. what names it.
func (d *decoder) mapping(n ast.Node, what string, fields ...field) {
	if d.depth++; d.depth > 16 {
		d.fail(at(n), "nested too deeply")
	}
	defer func() { d.depth-- }()
	where, given := at(n), n != nil
	n = d.resolve(n)
	var values []*ast.MappingValueNode
	switch m := n.(type) {
	case *ast.MappingNode:
		values = m.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{m}
	default:
		if n != nil || !given {
			d.fail(where, "%s is %s; want a mapping with the keys %s", what, kind(n), names(fields))
		}
		return
	}
	seen := map[string]pos{}
	for _, v := range values {
		key := scalarText(v.Key)
		kp := at(v.Key)
		if v.Key.IsMergeKey() {
			d.fail(kp, "merge keys (<<) are not supported; write the keys out")
			continue
		}
		if first, ok := seen[key]; ok {
			d.fail(kp, "key %q is there already, in line %d; remove one", key, first.line)
			continue
		}
		seen[key] = kp
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == key })
		if i < 0 {
			d.fail(kp, "unknown key %q in %s; %s", key, what, suggest(key, fields))
			continue
		}
		fields[i].read(v.Value)
	}
	for _, f := range fields {
		if _, ok := seen[f.name]; f.required && !ok {
			d.fail(where, "%s has no %q", what, f.name)
		}
	}
}

// list reads a list that isn't empty.
func (d *decoder) list(n ast.Node, what string, item func(ast.Node)) {
	where := at(n)
	n = d.resolve(n)
	s, ok := n.(*ast.SequenceNode)
	if !ok || len(s.Values) == 0 {
		d.fail(where, "%s is %s; want a list with one or more items, each after a dash", what, kind(n))
		return
	}
	for _, v := range s.Values {
		item(v)
	}
}

// scalar returns the text of a scalar, or complains that want was wanted.
func (d *decoder) scalar(n ast.Node, key, want string) (string, pos, bool) {
	where := at(n)
	n = d.resolve(n)
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return scalarText(n), where, true
	}
	d.fail(where, "%s is %s; want %s", key, kind(n), want)
	return "", where, false
}

func (d *decoder) str(key, want string, v *string) func(ast.Node) {
	return func(n ast.Node) {
		if s, where, ok := d.scalar(n, key, want); ok {
			if s == "" {
				d.fail(where, "%s is empty; want %s", key, want)
			}
			*v = s
		}
	}
}

// ascii is str for printable ASCII of at most so many characters.
func (d *decoder) ascii(key string, most int, v *string) func(ast.Node) {
	want := fmt.Sprintf("1 to %d printable ASCII characters", most)
	return func(n ast.Node) {
		where := at(n)
		d.str(key, want, v)(n)
		bad := func(r rune) bool { return r < 0x20 || r > 0x7e }
		if len(*v) > most || strings.ContainsFunc(*v, bad) {
			d.fail(where, "%s %q: want %s", key, *v, want)
		}
	}
}

func (d *decoder) boolean(key string, v *bool) func(ast.Node) {
	return func(n ast.Node) {
		where := at(n)
		b, ok := d.resolve(n).(*ast.BoolNode)
		if !ok {
			d.fail(where, "%s is %s; want true or false", key, kind(d.resolve(n)))
			return
		}
		*v = b.Value
	}
}

func integer[T ~int | ~uint8 | ~uint16](d *decoder, key string, low, high int, v *T) func(ast.Node) {
	return func(n ast.Node) {
		want := fmt.Sprintf("a number from %d to %d", low, high)
		s, where, ok := d.scalar(n, key, want)
		if !ok {
			return
		}
		i, err := strconv.Atoi(s)
		if err != nil || i < low || i > high {
			d.fail(where, "%s is %s; want %s", key, s, want)
			return
		}
		*v = T(i)
	}
}

var sizeUnits = map[string]int64{
	"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50, "EiB": 1 << 60,
}

const wantSize = "a size such as 64GiB, in bytes or with the unit KiB, MiB, GiB, TiB or PiB (powers of 1024)"

func (d *decoder) size(key string, v *int64) func(ast.Node) {
	return func(n ast.Node) {
		s, where, ok := d.scalar(n, key, wantSize)
		if !ok {
			return
		}
		size, err := ParseSize(s)
		if err != nil {
			d.fail(where, "%s is %s; want %s", key, s, wantSize)
			return
		}
		*v = size
	}
}

// ParseSize reads a size above 0: a whole number of bytes, or with one of the
// units KiB, MiB, GiB, TiB, PiB and EiB, "64GiB".
func ParseSize(s string) (int64, error) {
	digits := strings.TrimRight(s, "BKMGTPEi ")
	unit, ok := sizeUnits[strings.TrimSpace(s[len(digits):])]
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || n <= 0 || n > math.MaxInt64/unit {
		return 0, fmt.Errorf("%q: want %s", s, wantSize)
	}
	return n * unit, nil
}

func (d *decoder) duration(key string, v *time.Duration) func(ast.Node) {
	const want = "a time such as 500ms, 2s or 1m"
	return func(n ast.Node) {
		s, where, ok := d.scalar(n, key, want)
		if !ok {
			return
		}
		t, err := time.ParseDuration(s)
		if err != nil || t < 0 {
			d.fail(where, "%s is %s; want %s", key, s, want)
			return
		}
		*v = t
	}
}

func names(fields []field) string {
	var s []string
	for _, f := range fields {
		s = append(s, f.name)
	}
	return strings.Join(s, ", ")
}

// suggest says which key was meant, or all that there are.
func suggest(key string, fields []field) string {
	best, dist := "", min(3, len(key)) // a letter is like everything
	for _, f := range fields {
		if n := distance(key, f.name); n < dist {
			best, dist = f.name, n
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return "its keys are " + names(fields)
}

// distance is the number of letters to insert, delete or replace to make a b.
// Case, '-' and '_' don't count.
func distance(a, b string) int {
	fold := func(s string) string { return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s)) }
	a, b = fold(a), fold(b)
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			c := diag
			if a[i] != b[j] {
				c = 1 + min(diag, row[j], row[j+1])
			}
			diag, row[j+1] = row[j+1], c
		}
	}
	return row[len(b)]
}
