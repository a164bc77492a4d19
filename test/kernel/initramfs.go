package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"
)

// Where the guest's own files lie.
const (
	guestModules = "/lib/modules/lunlab" // NAME.ko and index.json
	guestIndex   = guestModules + "/index.json"
)

// index tells the guest's init and its modprobe what was brought along.
type index struct {
	Modules []Module `json:"modules"` // dependencies first
	Load    []string `json:"load"`    // by init, before anything runs
}

// Program returns the files that the program at host path p needs to run in a
// guest, itself and its shared libraries, as guest path -> host path.
func Program(p string) (map[string]string, error) {
	files := map[string]string{p: p}
	ldd := exec.Command("ldd", p)
	ldd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := ldd.CombinedOutput()
	if err != nil {
		if bytes.Contains(out, []byte("not a dynamic executable")) {
			return files, nil
		}
		return nil, fmt.Errorf("kernel: ldd %s: %w: %s", p, err, bytes.TrimSpace(out))
	}
	if lib := lddMissing.Find(out); lib != nil {
		return nil, fmt.Errorf("kernel: %s: %s", p, bytes.TrimSpace(lib))
	}
	for _, m := range lddPath.FindAllSubmatch(out, -1) {
		files[string(m[1])] = string(m[1])
	}
	return files, nil
}

var (
	lddPath    = regexp.MustCompile(`(/\S+) \(0x`)
	lddMissing = regexp.MustCompile(`(?m)^.*=> not found`)
)

// writeInitramfs writes a newc archive with init as /init, the modules, and
// files (guest path -> host path).
func writeInitramfs(w io.Writer, init string, mods []Module, load []string, files map[string]string) error {
	a := &archive{w: cpio.Newc.Writer(w), dirs: map[string]bool{".": true, "/": true}}
	for _, d := range []string{"/dev", "/proc", "/sys", "/run", "/tmp", "/etc", "/root", "/bin", "/sbin"} {
		a.mkdir(d)
	}
	// The kernel opens it for init before anything is mounted.
	a.add(cpio.CharDev("dev/console", 0o600, 5, 1))
	prog, err := Program(init)
	if err != nil {
		return err
	}
	delete(prog, init)
	a.file("/init", init)
	a.add(cpio.Symlink("sbin/modprobe", "/init"))
	a.add(cpio.Symlink("bin/lunlab", "/init"))
	all := maps.Clone(files)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, prog)
	for _, guest := range slices.Sorted(maps.Keys(all)) {
		a.file(guest, all[guest])
	}
	for _, m := range mods {
		a.bytes(path.Join(guestModules, m.Name+".ko"), m.image, 0o644)
	}
	idx, err := json.Marshal(index{Modules: mods, Load: load})
	if err != nil {
		return err
	}
	a.bytes(guestIndex, idx, 0o644)
	if a.err == nil {
		a.err = cpio.WriteTrailer(a.w)
	}
	if a.err != nil {
		return fmt.Errorf("kernel: initramfs: %w", a.err)
	}
	return nil
}

// archive writes cpio records and makes the folders that they lie in. The
// first error stays.
type archive struct {
	w    cpio.RecordWriter
	dirs map[string]bool
	err  error
}

func (a *archive) add(r cpio.Record) {
	if a.err == nil {
		a.err = a.w.WriteRecord(r)
	}
}

func (a *archive) mkdir(dir string) {
	dir = strings.TrimPrefix(path.Clean(dir), "/")
	if dir == "" || a.dirs[dir] {
		return
	}
	if up := path.Dir(dir); up != "." {
		a.mkdir(up)
	}
	a.dirs[dir] = true
	a.add(cpio.Directory(dir, 0o755))
}

func (a *archive) bytes(guest string, b []byte, perm uint64) {
	a.mkdir(path.Dir(guest))
	a.add(cpio.StaticFile(strings.TrimPrefix(guest, "/"), string(b), perm))
}

func (a *archive) file(guest, host string) {
	if a.err != nil {
		return
	}
	real, err := filepath.EvalSymlinks(host)
	if err != nil {
		a.err = err
		return
	}
	fi, err := os.Stat(real)
	if err != nil {
		a.err = err
		return
	}
	if !fi.Mode().IsRegular() {
		a.err = fmt.Errorf("%s: %w", host, errors.New("not a regular file"))
		return
	}
	f, err := os.Open(real)
	if err != nil {
		a.err = err
		return
	}
	defer f.Close()
	a.mkdir(path.Dir(guest))
	info := cpio.Info{
		Name:     strings.TrimPrefix(guest, "/"),
		Mode:     cpio.S_IFREG | uint64(fi.Mode().Perm()),
		FileSize: uint64(fi.Size()),
	}
	a.add(cpio.Record{ReaderAt: f, Info: info})
}
