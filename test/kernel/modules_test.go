package kernel

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/ulikunitz/xz"
)

// object makes an ELF object with a .modinfo section of these fields, which is
// all that this package reads of a module.
func object(fields ...string) []byte {
	info := []byte(strings.Join(fields, "\x00") + "\x00")
	names := []byte("\x00.modinfo\x00.shstrtab\x00")
	var b bytes.Buffer
	le := binary.LittleEndian
	b.Write([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	w := func(v any) { binary.Write(&b, le, v) }
	w([]uint16{1, 62}) // ET_REL, EM_X86_64
	w(uint32(1))
	w([]uint64{0, 0, uint64(64 + len(info) + len(names))}) // entry, phoff, shoff
	w(uint32(0))
	w([]uint16{64, 0, 0, 64, 3, 2})
	b.Write(info)
	b.Write(names)
	section := func(name, typ uint32, off, size int) {
		w([]uint32{name, typ})
		w([]uint64{0, 0, uint64(off), uint64(size)})
		w([]uint32{0, 0})
		w([]uint64{1, 0})
	}
	section(0, 0, 0, 0)
	section(1, 1, 64, len(info))
	section(10, 3, 64+len(info), len(names))
	return b.Bytes()
}

func write(t *testing.T, dir, name string, b []byte) {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func compressed(t *testing.T, b []byte) (gz, xzBytes []byte) {
	t.Helper()
	var g, x bytes.Buffer
	gw := gzip.NewWriter(&g)
	gw.Write(b)
	gw.Close()
	xw, err := xz.NewWriter(&x)
	if err != nil {
		t.Fatal(err)
	}
	xw.Write(b)
	xw.Close()
	return g.Bytes(), x.Bytes()
}

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	gz, _ := compressed(t, object("depends=", "alias=scsi:t-0x00*"))
	_, x := compressed(t, object("depends=scsi-mod,uio"))
	write(t, dir, "kernel/drivers/scsi/scsi_mod.ko.gz", gz)
	write(t, dir, "kernel/drivers/target/tcm-loop.ko.xz", x)
	write(t, dir, "kernel/drivers/uio/uio.ko", object("license=GPL v2", "depends=scsi_mod"))
	write(t, dir, "kernel/drivers/uio/uio.ko.sig", []byte("no module"))
	write(t, dir, "kernel/lost.ko", object("depends=nowhere"))
	write(t, dir, "kernel/a.ko", object("depends=b"))
	write(t, dir, "kernel/b.ko", object("depends=a"))
	write(t, dir, "kernel/text.ko", []byte("not an ELF object"))
	write(t, dir, "modules.builtin", []byte("kernel/fs/configfs/configfs.ko\n"))
	link := filepath.Join(t.TempDir(), "build") // as /lib/modules/VERSION/build is one
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	s, err := OpenModules(link)
	if err != nil {
		t.Fatal(err)
	}

	mods, err := s.Resolve("tcm_loop", "configfs", "uio")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range mods {
		names = append(names, m.Name)
	}
	if diff := cmp.Diff([]string{"scsi_mod", "uio", "tcm_loop"}, names); diff != "" {
		t.Errorf("dependencies first (-want +got):\n%s", diff)
	}
	if got := mods[0].Aliases; len(got) != 1 || got[0] != "scsi:t-0x00*" {
		t.Errorf("aliases of scsi_mod: %q", got)
	}

	for _, c := range []struct{ name, want string }{
		{"nothere", "no such module: nothere"},
		{"lost", "nowhere (needed by lost)"},
		{"a", "depends on itself"},
		{"text", "bad magic"},
	} {
		if _, err := s.Resolve(c.name); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Resolve(%q): %v, want an error with %q", c.name, err, c.want)
		}
	}
	if _, err := s.Resolve("nothere"); !errors.Is(err, ErrNoModule) {
		t.Errorf("Resolve of a missing module: %v, want ErrNoModule", err)
	}
}

// Without modules.builtin only the kernel knows what is built in.
func TestResolveWithoutBuiltinList(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		s, err := OpenModules(dir)
		if err != nil {
			t.Fatal(err)
		}
		if mods, err := s.Resolve("tcm_loop"); err != nil || len(mods) != 0 {
			t.Errorf("Resolve in %q: %v, %v; want nothing", dir, mods, err)
		}
	}
}

func FuzzReadModule(f *testing.F) {
	f.Add(object("depends=a,b", "alias=x"), uint8(0))
	f.Add([]byte("\x7fELF"), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, ext uint8) {
		name := filepath.Join(t.TempDir(), "m.ko"+[]string{"", ".gz", ".xz", ".zst"}[ext%4])
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Skip(err)
		}
		readModule("m", name) // any error, no panic
	})
}
