package tcmu

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// fakeSystem plays the kernel's files: configfs with TCMU and tcm_loop, and
// what they make in sysfs. Folders are entries that end with a slash.
type fakeSystem struct {
	t *testing.T

	mu     sync.Mutex
	files  map[string]string
	calls  int
	failAt int // the call that fails; 0 for none
	failed string
	inUse  map[string]bool // UIO devices that a living process has open
	closed []int           // of each that was opened, how often it was closed
	uios   int
	hosts  int
}

const (
	fakeCore   = "/cfg/target/core"
	fakeLoop   = "/cfg/target/loopback"
	fakeParams = "/sys/module/tcm_loop/parameters/"
)

func newFakeSystem(t *testing.T) *fakeSystem {
	return &fakeSystem{t: t, inUse: map[string]bool{}, files: map[string]string{
		"/cfg/target/": "", fakeCore + "/": "", "/sys/class/uio/": "",
		fakeParams + "nr_hw_queues": "1", fakeParams + "can_queue": "1024", fakeParams + "cmd_per_lun": "1024",
	}}
}

// enter counts a call, and fails it if it is its turn.
func (s *fakeSystem) enter(op, path string) error {
	s.calls++
	if s.calls == s.failAt {
		s.failed = op + " " + path
		return &os.PathError{Op: op, Path: path, Err: syscall.EIO}
	}
	return nil
}

func (s *fakeSystem) isDir(path string) bool { _, ok := s.files[path+"/"]; return ok }

func (s *fakeSystem) put(dir string, files map[string]string) {
	for name, v := range files {
		path := filepath.Join(dir, name)
		s.files[path] = v
		for d := filepath.Dir(path); !s.isDir(d) && d != "/"; d = filepath.Dir(d) {
			s.files[d+"/"] = ""
		}
	}
}

func (s *fakeSystem) drop(dir string) {
	maps.DeleteFunc(s.files, func(p, _ string) bool { return p == dir || strings.HasPrefix(p, dir+"/") })
}

func pathErr(op, path string, err error) error { return &os.PathError{Op: op, Path: path, Err: err} }

func (s *fakeSystem) mkdir(path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("mkdir", path); err != nil {
		return err
	}
	if s.isDir(path) {
		return pathErr("mkdir", path, fs.ErrExist)
	}
	if !s.isDir(filepath.Dir(path)) {
		return pathErr("mkdir", path, fs.ErrNotExist)
	}
	s.files[path+"/"] = ""
	switch rel, _ := strings.CutPrefix(path, "/cfg/target/"); {
	case strings.HasPrefix(rel, "core/") && strings.Count(rel, "/") == 1:
		s.put(path, map[string]string{"hba_info": "", "hba_mode": ""})
	case strings.HasPrefix(rel, "core/"):
		s.put(path, map[string]string{
			"control": "", "enable": "", "action/reset_ring": "", "attrib/dev_config": "", "attrib/cmd_time_out": "30",
			"attrib/tmr_notification": "0", "attrib/pgr_support": "1", "attrib/alua_support": "1",
		})
	case rel == "loopback":
		s.put(path, map[string]string{"discovery_auth/x": ""})
	case strings.HasPrefix(rel, "loopback/") && strings.Count(rel, "/") == 1:
		host := fmt.Sprintf("/sys/class/scsi_host/host%d", s.hosts)
		s.files[path+"/"] = host
		for _, p := range []string{"nr_hw_queues", "can_queue", "cmd_per_lun"} {
			s.put(host, map[string]string{p: s.files[fakeParams+p]})
		}
		s.hosts++
	case strings.HasPrefix(rel, "loopback/") && strings.Count(rel, "/") == 2:
		host := s.files[filepath.Dir(path)+"/"]
		s.put(path, map[string]string{"nexus": "", "address": strings.TrimPrefix(filepath.Base(host), "host") + ":0:1\n", "lun/": ""})
		s.files[path+"/lun/"] = ""
		delete(s.files, path+"/lun")
	case strings.HasPrefix(rel, "loopback/"):
		s.put(path, map[string]string{"alua_tg_pt_gp": ""})
	}
	return nil
}

// rmdir removes a folder unless there is a folder or link that was made in it.
func (s *fakeSystem) rmdir(path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("rmdir", path); err != nil {
		return err
	}
	if !s.isDir(path) {
		return pathErr("rmdir", path, fs.ErrNotExist)
	}
	device := strings.HasPrefix(path, fakeCore+"/user_") && strings.Count(path, "/") == 5
	for p, v := range s.files {
		rest, below := strings.CutPrefix(p, path+"/")
		made := strings.HasSuffix(p, "/") && rest != "" && rest != "lun/" && rest != "discovery_auth/"
		if below && (made || strings.HasPrefix(v, "->")) && !device {
			return pathErr("rmdir", path, syscall.ENOTEMPTY)
		}
		if v == "->"+path {
			return pathErr("rmdir", path, syscall.EBUSY)
		}
	}
	if device {
		for p, v := range s.files {
			if strings.HasPrefix(p, "/sys/class/uio/") && strings.HasSuffix(p, "/name") && deviceKey(v) == deviceKeyOf(path) {
				defer s.drop(filepath.Dir(p))
			}
		}
	}
	if host := s.files[path+"/"]; host != "" {
		s.drop(host)
	}
	s.drop(path)
	return nil
}

func deviceKeyOf(path string) string {
	return strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "user_") + "/" + filepath.Base(path)
}

func (s *fakeSystem) symlink(target, path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("symlink", path); err != nil {
		return err
	}
	if !s.isDir(target) || !s.isDir(filepath.Dir(path)) {
		return pathErr("symlink", path, fs.ErrNotExist)
	}
	s.files[path] = "->" + target
	tpg := filepath.Dir(filepath.Dir(filepath.Dir(path)))
	hctl := strings.TrimSpace(s.files[tpg+"/address"]) + ":" + strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "lun_")
	s.put("/sys/class/scsi_device/"+hctl+"/device", map[string]string{
		"type": "0", "queue_depth": "7", "block/sda/x": "", "scsi_generic/sg0/x": "",
	})
	return nil
}

func (s *fakeSystem) unlink(path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("unlink", path); err != nil {
		return err
	}
	tpg := filepath.Dir(filepath.Dir(filepath.Dir(path)))
	s.drop("/sys/class/scsi_device/" + strings.TrimSpace(s.files[tpg+"/address"]) + ":" + strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "lun_"))
	delete(s.files, path)
	return nil
}

func (s *fakeSystem) readlink(path string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := strings.CutPrefix(s.files[path], "->")
	if !ok {
		return "", pathErr("readlink", path, syscall.EINVAL)
	}
	return t, nil
}

func (s *fakeSystem) list(dir string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("readdir", dir); err != nil {
		return nil, err
	}
	if !s.isDir(dir) {
		return nil, pathErr("readdir", dir, fs.ErrNotExist)
	}
	var names []string
	for p := range s.files {
		if rest, ok := strings.CutPrefix(p, dir+"/"); ok && rest != "" && !strings.Contains(strings.TrimSuffix(rest, "/"), "/") {
			names = append(names, strings.TrimSuffix(rest, "/"))
		}
	}
	slices.Sort(names)
	return names, nil
}

func (s *fakeSystem) read(path string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("read", path); err != nil {
		return "", err
	}
	v, ok := s.files[path]
	if !ok {
		return "", pathErr("read", path, fs.ErrNotExist)
	}
	return strings.TrimSpace(v), nil
}

func (s *fakeSystem) write(path, value string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("write", path); err != nil {
		return err
	}
	if _, ok := s.files[path]; !ok {
		return pathErr("write", path, fs.ErrNotExist)
	}
	s.files[path] = value
	dir := filepath.Dir(path)
	switch filepath.Base(path) {
	case "control":
		for _, o := range strings.Split(value, ",") {
			if v, ok := strings.CutPrefix(o, "dev_config="); ok {
				s.files[dir+"/attrib/dev_config"] = v
			}
		}
	case "enable":
		u := fmt.Sprintf("/sys/class/uio/uio%d", s.uios)
		s.uios++
		s.put(u, map[string]string{"name": "tcm-user/" + deviceKeyOf(dir) + "/" + s.files[dir+"/attrib/dev_config"] + "\n", "maps/map0/size": "0x10000\n"})
	}
	return nil
}

func (s *fakeSystem) openBlock(path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.enter("open", path)
}

func (s *fakeSystem) lock(string) func() { return func() {} }

func (s *fakeSystem) openUIO(path string, size int) (*uio, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("open", path); err != nil {
		return nil, err
	}
	if s.inUse[path] {
		return nil, pathErr("open", path, syscall.EBUSY)
	}
	s.inUse[path] = true
	if size != 0x10000 {
		s.t.Errorf("open of %s with size %#x", path, size)
	}
	p := newProducer(s.t, 4096, 4)
	n := len(s.closed)
	s.closed = append(s.closed, 0)
	return &uio{bell: p.bell, mem: p.mem, close: func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.inUse, path)
		s.closed[n]++
		return nil
	}}, nil
}

// snapshot is what there is, but for the folders of sysfs.
func (s *fakeSystem) snapshot() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := maps.Clone(s.files)
	maps.DeleteFunc(m, func(p, _ string) bool { return strings.HasPrefix(p, "/sys/") && strings.HasSuffix(p, "/") })
	return m
}
