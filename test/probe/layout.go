package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// ErrNoBTF says that the kernel, or its scsi_mod module, carries no BTF, so
// that nothing is known of its structures.
var ErrNoBTF = errors.New("no BTF: the kernel needs CONFIG_DEBUG_INFO_BTF, and CONFIG_DEBUG_INFO_BTF_MODULES where scsi_mod is a module")

// ErrNoSCSI says that the SCSI core is neither built in nor loaded.
var ErrNoSCSI = errors.New("the SCSI core is not there: modprobe scsi_mod")

// MissingFieldError says that a structure of the kernel doesn't have what the
// probe can't do without.
type MissingFieldError struct {
	Field string // "scsi_device.budget_map.map"
}

func (e *MissingFieldError) Error() string {
	s := fmt.Sprintf("this kernel's BTF has no %s", e.Field)
	if strings.HasPrefix(e.Field, "scsi_device.budget_map") {
		s += ": it is older than budget maps (5.13)"
	}
	return s
}

// Field is where a member of a kernel structure is.
type Field struct {
	Offset int `json:"offset"` // bytes from the structure's start
	Size   int `json:"size"`   // bytes; 1 for a bit field
	Bit    int `json:"bit,omitempty"`
	Bits   int `json:"bits,omitempty"` // width of a bit field, which has to lie in one byte; else 0
}

// Layout is what the probe needs to know of a kernel's structures. It can be
// found on one machine and used on another, as JSON, if both have the same
// kernel.
type Layout struct {
	// RequestSize is sizeof(struct request): a scsi_cmnd lies right behind its
	// request.
	RequestSize int `json:"request_size"`
	// Fields has the members found, by "structure.member", with a further
	// ".member" for one inside a structure that is embedded.
	Fields map[string]Field `json:"fields"`
	// Types has the names of those types and functions that were looked for
	// to tell kernels apart, and found.
	Types []string `json:"types"`
	// PerCPUCounters says that scsi_device.iorequest_cnt is a per-CPU counter.
	PerCPUCounters bool `json:"per_cpu_counters,omitempty"`
}

// The structure members used. Without a required one there is no probe;
// without another, what it would have told is reported as missing.
var layoutFields = []struct {
	name     string
	required bool
	max      int // bytes that the program has room for
}{
	{"scsi_cmnd.device", true, 8},
	{"scsi_cmnd.budget_token", false, 4},
	{"scsi_device.host", true, 8},
	{"scsi_device.id", true, 4},
	{"scsi_device.channel", true, 4},
	{"scsi_device.lun", true, 8},
	{"scsi_device.queue_depth", false, 2},
	{"scsi_device.budget_map.map", true, 8},
	{"scsi_device.budget_map.depth", true, 4},
	{"scsi_device.budget_map.shift", true, 4},
	{"Scsi_Host.host_no", true, 4},
	{"Scsi_Host.shost_gendev.kobj.sd", false, 8},
	{"kernfs_node.id", false, 8},
	{"Scsi_Host.can_queue", false, 4},
	{"Scsi_Host.cmd_per_lun", false, 2},
	{"Scsi_Host.nr_hw_queues", false, 4},
	{"Scsi_Host.tag_set.nr_hw_queues", false, 4},
	{"Scsi_Host.host_tagset", false, 1},
	{"Scsi_Host.needs_budget_token", false, 1},
	{"Scsi_Host.pseudo_sdev", false, 8},
	{"request.tag", false, 4},
	{"request.mq_hctx", false, 8},
	{"blk_mq_hw_ctx.queue_num", false, 4},
}

// The types and functions that tell kernels apart.
var layoutTypes = []string{
	"sdev_in_flight_data",      // v1's walk over the tags
	"sdev_cmds_allocated_data", // the later versions'
	"blk_mq_tagset_iter",
	"scsi_device_busy", // inline in a kernel without the series
}

func (l *Layout) has(field string) bool {
	_, ok := l.Fields[field]
	return ok
}

// Missing names the members that the layout lacks, sorted.
func (l *Layout) Missing() []string {
	var m []string
	for _, f := range layoutFields {
		if _, ok := l.Fields[f.name]; !ok {
			m = append(m, f.name)
		}
	}
	slices.Sort(m)
	return m
}

// check reports a layout that no program can be made of, which may have come
// from a file.
func (l *Layout) check() error {
	if l.RequestSize <= 0 || l.RequestSize > 1<<20 {
		return fmt.Errorf("probe: layout: request_size %d: want 1 to %d", l.RequestSize, 1<<20)
	}
	for _, want := range layoutFields {
		f, ok := l.Fields[want.name]
		switch {
		case !ok && want.required:
			return fmt.Errorf("probe: %w", &MissingFieldError{want.name})
		case !ok:
		case f.Offset < 0 || f.Offset > 1<<20:
			return fmt.Errorf("probe: layout: %s: offset %d: want 0 to %d", want.name, f.Offset, 1<<20)
		case f.Size < 1 || f.Size > want.max:
			return fmt.Errorf("probe: layout: %s: %d bytes: want 1 to %d", want.name, f.Size, want.max)
		case f.Bits < 0 || f.Bit < 0 || f.Bit+f.Bits > 8:
			return fmt.Errorf("probe: layout: %s: bits %d to %d don't lie in a byte", want.name, f.Bit, f.Bit+f.Bits)
		}
	}
	return nil
}

// LoadLayout finds the running kernel's layout. Its errors wrap [ErrNoBTF],
// [ErrNoSCSI] or a [*MissingFieldError].
func LoadLayout() (*Layout, error) { return loadLayout("/sys") }

// loadLayout takes BTF from a sysfs that is mounted there.
func loadLayout(sysfs string) (*Layout, error) {
	vmlinux, err := loadSpec(filepath.Join(sysfs, "kernel/btf/vmlinux"), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("probe: %w", ErrNoBTF)
	}
	if err != nil {
		return nil, fmt.Errorf("probe: the kernel's BTF: %w", err)
	}
	module, err := loadSpec(filepath.Join(sysfs, "kernel/btf/scsi_mod"), vmlinux)
	switch {
	case err == nil:
		return FindLayout(module, vmlinux)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("probe: scsi_mod's BTF: %w", err)
	}
	var sdev *btf.Struct
	if vmlinux.TypeByName("scsi_device", &sdev) != nil {
		// It isn't built in. Is it a module without BTF, or not loaded?
		if _, err := os.Stat(filepath.Join(sysfs, "module/scsi_mod")); err != nil {
			return nil, fmt.Errorf("probe: %w", ErrNoSCSI)
		}
		return nil, fmt.Errorf("probe: scsi_mod: %w", ErrNoBTF)
	}
	return FindLayout(vmlinux)
}

// loadSpec reads BTF; base is the kernel's, for a module's.
func loadSpec(path string, base *btf.Spec) (*btf.Spec, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return btf.LoadSplitSpecFromReader(f, base)
}

// FindLayout finds a kernel's layout in its BTF: vmlinux's, and where scsi_mod
// is a module, that module's split BTF before it. It fails with a
// [*MissingFieldError] if something required isn't there.
func FindLayout(specs ...*btf.Spec) (*Layout, error) {
	l := &Layout{Fields: map[string]Field{}}
	structs := map[string]*btf.Struct{}
	find := func(name string) *btf.Struct {
		if s, ok := structs[name]; ok {
			return s
		}
		var s *btf.Struct
		for _, spec := range specs {
			if spec.TypeByName(name, &s) == nil {
				break
			}
		}
		structs[name] = s
		return s
	}
	for _, f := range layoutFields {
		name, path, _ := strings.Cut(f.name, ".")
		s := find(name)
		if s == nil {
			continue
		}
		if at, ok := member(s.Members, strings.Split(path, ".")); ok {
			l.Fields[f.name] = at
		}
	}
	if s := find("request"); s != nil {
		l.RequestSize = int(s.Size)
	}
	if s := find("scsi_device"); s != nil {
		for _, m := range s.Members {
			if st, ok := btf.UnderlyingType(m.Type).(*btf.Struct); ok && m.Name == "iorequest_cnt" {
				l.PerCPUCounters = st.Name == "percpu_counter"
			}
		}
	}
	for _, name := range layoutTypes {
		for _, spec := range specs {
			if types, err := spec.AnyTypesByName(name); err == nil && len(types) > 0 {
				l.Types = append(l.Types, name)
				break
			}
		}
	}
	if l.RequestSize == 0 {
		return nil, fmt.Errorf("probe: %w", &MissingFieldError{"request"})
	}
	if err := l.check(); err != nil {
		return nil, err
	}
	return l, nil
}

// member finds a member by its path, looking into anonymous structures and
// unions on the way.
func member(members []btf.Member, path []string) (Field, bool) {
	for _, m := range members {
		at := int(m.Offset / 8)
		switch {
		case m.Name == path[0] && len(path) == 1 && m.BitfieldSize > 0:
			return Field{Offset: at, Size: 1, Bit: int(m.Offset % 8), Bits: int(m.BitfieldSize)}, true
		case m.Name == path[0] && len(path) == 1:
			size, err := btf.Sizeof(m.Type)
			return Field{Offset: at, Size: size}, err == nil
		case m.Name == path[0]:
			path := path[1:]
			f, ok := member(inner(m.Type), path)
			f.Offset += at
			return f, ok
		case m.Name == "":
			if f, ok := member(inner(m.Type), path); ok {
				f.Offset += at
				return f, true
			}
		}
	}
	return Field{}, false
}

func inner(t btf.Type) []btf.Member {
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		return t.Members
	case *btf.Union:
		return t.Members
	}
	return nil
}
