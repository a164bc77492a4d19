package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

func readIndex() (*index, error) {
	b, err := os.ReadFile(guestIndex)
	if err != nil {
		return nil, fmt.Errorf("modules: %w", err)
	}
	idx := new(index)
	if err := json.Unmarshal(b, idx); err != nil {
		return nil, fmt.Errorf("modules: %s: %w", guestIndex, err)
	}
	return idx, nil
}

// modprobe is the guest's modprobe: "modprobe [-q] [-v] [-n] [--] NAME
// [PARAM=VALUE...]", the form of the kernel's request_module among them, and
// "modprobe -r NAME". With -n nothing is loaded.
func modprobe(args []string) error {
	remove, dry := false, false
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		switch args[0] {
		case "-q", "-v", "--":
		case "-n":
			dry = true
		case "-r":
			remove = true
		default:
			return fmt.Errorf("%s: this is a guest's modprobe, which has only -q, -v, -n and -r", args[0])
		}
		args = args[1:]
	}
	if len(args) == 0 {
		return errors.New("no module named")
	}
	name := strings.ReplaceAll(args[0], "-", "_")
	if remove {
		if dry {
			return nil
		}
		if err := unix.DeleteModule(name, 0); err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
		return nil
	}
	idx, err := readIndex()
	if err != nil {
		return err
	}
	if dry && idx.find(args[0]) != nil {
		return nil
	}
	return idx.load(args[0], strings.Join(args[1:], " "))
}

func (x *index) find(name string) *Module {
	under := strings.ReplaceAll(name, "-", "_")
	for i := range x.Modules {
		m := &x.Modules[i]
		if m.Name == under {
			return m
		}
		for _, a := range m.Aliases {
			if ok, _ := path.Match(a, name); ok {
				return m
			}
		}
	}
	return nil
}

// load loads the module that has this name or alias, and first what it depends
// on. One that is loaded already, or built in and seen in /sys/module, is no
// error; one that was not brought along is an [ErrNoModule].
func (x *index) load(name, params string) error {
	m := x.find(name)
	if m == nil {
		if _, err := os.Stat("/sys/module/" + strings.ReplaceAll(name, "-", "_")); err == nil {
			return nil
		}
		return fmt.Errorf("%w: %s was not brought along: the kernel's folder of modules (--modules) doesn't have it, and /sys/module doesn't show it built in", ErrNoModule, name)
	}
	for _, d := range m.Depends {
		if err := x.load(d, ""); err != nil && !errors.Is(err, ErrNoModule) {
			return err
		}
	}
	f, err := os.Open(filepath.Join(guestModules, m.Name+".ko"))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), params, 0); err != nil && err != unix.EEXIST {
		return fmt.Errorf("load %s %s: %w", m.Name, params, err)
	}
	return nil
}
