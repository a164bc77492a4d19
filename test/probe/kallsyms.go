package probe

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
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
	for s.Scan() { // a hundred thousand lines and more
		line := s.Bytes()
		addr, i := uint64(0), 0
		for ; i < len(line) && i < 16; i++ {
			d := bytes.IndexByte([]byte("0123456789abcdef"), line[i])
			if d < 0 {
				break
			}
			addr = addr<<4 | uint64(d)
		}
		if i == 0 || len(line) < i+4 || line[i] != ' ' || line[i+2] != ' ' {
			return nil, fmt.Errorf("kallsyms: line %q: want an address, a letter and a name", line)
		}
		addrs = append(addrs, addr)
		if bytes.IndexByte([]byte("tTwW"), line[i+1]) < 0 {
			continue
		}
		// The module's name is behind a tab; what the compiler has specialised
		// is named NAME.constprop.0 or the like.
		name := line[i+3:]
		if end := bytes.IndexAny(name, "\t."); end >= 0 {
			name = name[:end]
		}
		if !slices.ContainsFunc(names, func(n string) bool { return n == string(name) }) {
			continue
		}
		if addr == 0 {
			return nil, errors.New("kallsyms: the kernel hides its addresses (kernel.kptr_restrict, or not root)")
		}
		if _, twice := found[string(name)]; !twice {
			found[string(name)] = symbol{addr: addr}
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
