package lab

import (
	"errors"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"lunlab/lun/fault"
)

// faults reads the rules of a LUN, each a line as [fault.Parse] takes it.
func (l *loader) faults(n ast.Node, rules *[]*fault.Rule) {
	l.list(n, "faults", func(n ast.Node) {
		s, where, ok := l.scalar(n, "faults", "a rule such as cmd=read lba=100-199 medium-error")
		if !ok {
			return
		}
		r, err := fault.Parse(s)
		var bad *fault.SyntaxError
		switch {
		case errors.As(err, &bad):
			l.fail(within(l.resolve(n), where, bad.Offset), "faults: %v", err)
		case len(*rules) == fault.MaxRules:
			l.fail(where, "%v", fault.ErrTooMany)
		default:
			*rules = append(*rules, r)
		}
	})
}

// within is the place of a byte of a scalar that begins at where. Of one that is
// written on several lines, it is where.
func within(n ast.Node, where pos, offset int) pos {
	t := n.GetToken()
	if t == nil || len(t.Value) > len(t.Origin) {
		return where
	}
	switch t.Type {
	case token.SingleQuoteType, token.DoubleQuoteType:
		offset++
	case token.StringType:
	default:
		return where
	}
	return pos{where.line, where.column + offset}
}
