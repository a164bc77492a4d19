package kernel

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// ErrNoModule says that a module is neither in the folder nor built in.
var ErrNoModule = errors.New("no such module")

// Module is one kernel module as it goes into a guest.
type Module struct {
	Name    string   `json:"name"` // with underscores, as /proc/modules has it
	Depends []string `json:"depends,omitempty"`
	Aliases []string `json:"aliases,omitempty"` // shell patterns, as request_module asks for them

	image []byte // the ELF object, uncompressed
}

// ModuleSet knows the modules below a folder.
type ModuleSet struct {
	dir     string
	files   map[string]string // name -> file
	builtin map[string]bool   // from modules.builtin; nil if the folder has none
}

// OpenModules looks through dir, a /lib/modules/VERSION or any folder with
// .ko, .ko.gz, .ko.xz or .ko.zst files below it. An empty dir is an empty set.
func OpenModules(dir string) (*ModuleSet, error) {
	s := &ModuleSet{dir: dir, files: map[string]string{}}
	if dir == "" {
		return s, nil
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("kernel modules: %w", err)
	}
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if name, ok := moduleName(p); ok {
			s.files[name] = p
		}
		if d.Name() == "modules.builtin" {
			return s.readBuiltin(p)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("kernel modules: %w", err)
	}
	return s, nil
}

func (s *ModuleSet) readBuiltin(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	s.builtin = map[string]bool{}
	for line := range strings.Lines(string(b)) {
		if name, ok := moduleName(strings.TrimSpace(line)); ok {
			s.builtin[name] = true
		}
	}
	return nil
}

// moduleName is the name of the module in a file called p.
func moduleName(p string) (string, bool) {
	for _, ext := range []string{".ko", ".ko.gz", ".ko.xz", ".ko.zst"} {
		if name, ok := strings.CutSuffix(path.Base(p), ext); ok {
			return strings.ReplaceAll(name, "-", "_"), true
		}
	}
	return "", false
}

// those returns those of the modules that the folder has.
func (s *ModuleSet) those(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return s.files[n] == "" })
}

// Resolve returns the named modules and what they depend on, dependencies
// first. A module that modules.builtin lists is left out. One that is nowhere
// is an [ErrNoModule], but only if the folder has a modules.builtin: without
// it, the kernel may have it built in, and only a boot can tell.
func (s *ModuleSet) Resolve(names ...string) ([]Module, error) {
	var (
		out   []Module
		state = map[string]int{} // 1: being visited, 2: done
		visit func(name, from string) error
	)
	visit = func(name, from string) error {
		name = strings.ReplaceAll(name, "-", "_")
		if state[name] == 2 {
			return nil
		}
		if state[name] == 1 {
			return fmt.Errorf("kernel modules: %s depends on itself", name)
		}
		file, ok := s.files[name]
		if !ok {
			if s.builtin == nil || s.builtin[name] {
				return nil
			}
			if from != "" {
				from = " (needed by " + from + ")"
			}
			return fmt.Errorf("%w: %s%s: not in %s, nor in its modules.builtin", ErrNoModule, name, from, s.dir)
		}
		state[name] = 1
		m, err := readModule(name, file)
		if err != nil {
			return err
		}
		for _, d := range m.Depends {
			if err := visit(d, name); err != nil {
				return err
			}
		}
		state[name] = 2
		out = append(out, m)
		return nil
	}
	for _, n := range names {
		if err := visit(n, ""); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// maxModule bounds a module, uncompressed; the largest in use are some 20 MiB.
const maxModule = 256 << 20

// readModule reads a module and its .modinfo section.
func readModule(name, file string) (Module, error) {
	m := Module{Name: name}
	f, err := os.Open(file)
	if err != nil {
		return m, fmt.Errorf("kernel modules: %w", err)
	}
	defer f.Close()
	r, err := decompress(file, bufio.NewReaderSize(f, 1<<20))
	if err == nil {
		m.image, err = io.ReadAll(io.LimitReader(r, maxModule))
	}
	if err != nil {
		return m, fmt.Errorf("kernel modules: %s: %w", file, err)
	}
	obj, err := elf.NewFile(bytes.NewReader(m.image))
	if err != nil {
		return m, fmt.Errorf("kernel modules: %s: %w", file, err)
	}
	sec := obj.Section(".modinfo")
	if sec == nil {
		return m, fmt.Errorf("kernel modules: %s: no .modinfo section", file)
	}
	info, err := sec.Data()
	if err != nil {
		return m, fmt.Errorf("kernel modules: %s: %w", file, err)
	}
	for field := range strings.SplitSeq(string(info), "\x00") {
		key, val, _ := strings.Cut(field, "=")
		switch {
		case key == "depends" && val != "":
			m.Depends = append(m.Depends, strings.Split(val, ",")...)
		case key == "alias":
			m.Aliases = append(m.Aliases, val)
		}
	}
	return m, nil
}

func decompress(name string, r io.Reader) (io.Reader, error) {
	switch path.Ext(name) {
	case ".ko":
		return r, nil
	case ".gz":
		return gzip.NewReader(r)
	case ".xz":
		return xz.NewReader(r)
	case ".zst":
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return nil, fmt.Errorf("unknown compression %q", path.Ext(name))
}
