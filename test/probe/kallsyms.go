package probe

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// symbol is a function of the kernel.
type symbol struct {
	addr uint64
	size int // bytes to the next symbol, at most maxCode
}

// maxCode bounds what is read of one function.
const maxCode = 8192

// readSymbols finds functions by name in the text of /proc/kallsyms. Those
// that aren't there are not in the result. It fails where the kernel hides its
// addresses.
func readSymbols(r io.Reader, names ...string) (map[string]symbol, error) {
	found := map[string]symbol{}
	var addrs []uint64
	s := bufio.NewScanner(r)
	for s.Scan() {
		addr, rest, _ := strings.Cut(s.Text(), " ")
		kind, rest, _ := strings.Cut(rest, " ")
		n, err := strconv.ParseUint(addr, 16, 64)
		if err != nil || len(kind) != 1 {
			return nil, fmt.Errorf("kallsyms: line %q: want an address, a letter and a name", s.Text())
		}
		addrs = append(addrs, n)
		if !strings.Contains("tTwW", kind) {
			continue
		}
		name, _, _ := strings.Cut(rest, "\t") // "\t[module]"
		// What the compiler has specialised is named NAME.constprop.0 or the like.
		name, _, _ = strings.Cut(name, ".")
		if _, twice := found[name]; slices.Contains(names, name) && !twice {
			if n == 0 {
				return nil, errors.New("kallsyms: the kernel hides its addresses (kernel.kptr_restrict, or not root)")
			}
			found[name] = symbol{addr: n}
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("kallsyms: %w", err)
	}
	for name, sym := range found {
		sym.size = maxCode
		for _, a := range addrs {
			if a > sym.addr && a-sym.addr < uint64(sym.size) {
				sym.size = int(a - sym.addr)
			}
		}
		found[name] = sym
	}
	return found, nil
}
