package probe

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
)

var (
	u16 = &btf.Int{Name: "unsigned short", Size: 2}
	u32 = &btf.Int{Name: "unsigned int", Size: 4}
	u64 = &btf.Int{Name: "unsigned long", Size: 8}
)

func at(name string, t btf.Type, bytes uint32) btf.Member {
	return btf.Member{Name: name, Type: t, Offset: btf.Bits(8 * bytes)}
}

// scsiTypes are the structures the probe reads, small, with what real ones have:
// embedded structures, an anonymous union, bit fields, pointers, typedefs.
func scsiTypes() map[string]*btf.Struct {
	s := map[string]*btf.Struct{}
	add := func(name string, size uint32, members ...btf.Member) *btf.Struct {
		s[name] = &btf.Struct{Name: name, Size: size, Members: members}
		return s[name]
	}
	ptr := &btf.Pointer{Target: &btf.Void{}}
	sbitmap := add("sbitmap", 32, at("depth", u32, 0), at("shift", u32, 4), at("map", ptr, 16))
	set := add("blk_mq_tag_set", 64, at("ops", ptr, 0), at("nr_hw_queues", u32, 60))
	add("blk_mq_hw_ctx", 400, at("queue_num", u32, 308))
	add("request", 280, at("mq_hctx", ptr, 16),
		at("", &btf.Union{Size: 8, Members: []btf.Member{at("tag", &btf.Typedef{Name: "tag_t", Type: u32}, 0), at("other", u64, 0)}}, 32))
	add("kernfs_node", 128, at("", &btf.Struct{Size: 8, Members: []btf.Member{at("id", u64, 0)}}, 96))
	device := add("device", 700, at("kobj", add("kobject", 64, at("sd", ptr, 48)), 0))
	add("Scsi_Host", 1400, at("shost_gendev", device, 528), at("tag_set", set, 224), at("host_no", u32, 404), at("can_queue", u32, 452), at("cmd_per_lun", u16, 456), at("nr_hw_queues", u32, 496),
		btf.Member{Name: "host_tagset", Type: u32, Offset: 505*8 + 7, BitfieldSize: 1})
	counter := add("percpu_counter", 40, at("count", u64, 8))
	add("scsi_device", 900, at("host", &btf.Pointer{Target: s["Scsi_Host"]}, 0), at("budget_map", sbitmap, 48), at("queue_depth", u16, 112), at("id", u32, 144), at("channel", u32, 148),
		at("lun", &btf.Typedef{Name: "u64", Type: u64}, 152), at("iorequest_cnt", counter, 428))
	add("scsi_cmnd", 300, at("device", ptr, 0), at("budget_token", u32, 132))
	return s
}

// encode makes BTF of types.
func encode(t *testing.T, types ...btf.Type) []byte {
	t.Helper()
	b, err := btf.NewBuilder(types, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.Marshal(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func spec(t *testing.T, types ...btf.Type) *btf.Spec {
	t.Helper()
	s, err := btf.LoadSpecFromReader(bytes.NewReader(encode(t, types...)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func structs(m map[string]*btf.Struct) []btf.Type {
	var types []btf.Type
	for _, s := range m {
		types = append(types, s)
	}
	return types
}

func TestFindLayout(t *testing.T) {
	types := structs(scsiTypes())
	types = append(types, &btf.Struct{Name: "sdev_cmds_allocated_data", Size: 4, Members: []btf.Member{at("count", u32, 0)}})
	got, err := FindLayout(spec(t, types...))
	if err != nil {
		t.Fatal(err)
	}
	want := layout612()
	want.Types, want.PerCPUCounters = []string{"sdev_cmds_allocated_data"}, true
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if d := cmp.Diff([]string{"Scsi_Host.needs_budget_token", "Scsi_Host.pseudo_sdev"}, got.Missing()); d != "" {
		t.Errorf("missing: -want +got:\n%s", d)
	}

	var back Layout
	raw, err := json.Marshal(got)
	if err == nil {
		err = json.Unmarshal(raw, &back)
	}
	if d := cmp.Diff(got, &back); err != nil || d != "" {
		t.Errorf("through JSON: %v, -want +got:\n%s", err, d)
	}
}

// A module's structures are in its own BTF; vmlinux's may have the name only.
func TestFindLayoutInModule(t *testing.T) {
	types := scsiTypes()
	var inKernel, inModule []btf.Type
	for name, s := range types {
		if strings.HasPrefix(name, "scsi_") || name == "Scsi_Host" {
			inModule = append(inModule, s)
			inKernel = append(inKernel, &btf.Fwd{Name: name, Kind: btf.FwdStruct})
		} else {
			inKernel = append(inKernel, s)
		}
	}
	kernel, module := spec(t, inKernel...), spec(t, inModule...)
	got, err := FindLayout(module, kernel)
	if err != nil {
		t.Fatal(err)
	}
	want := layout612()
	want.PerCPUCounters = true
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	var missing *MissingFieldError
	if _, err := FindLayout(kernel); !errors.As(err, &missing) {
		t.Errorf("without the module's: got %v, want a MissingFieldError", err)
	}
}

func TestFindLayoutMissing(t *testing.T) {
	drop := func(m map[string]*btf.Struct, of, name string) {
		s := m[of]
		for i, x := range s.Members {
			if x.Name == name {
				s.Members = append(s.Members[:i:i], s.Members[i+1:]...)
				return
			}
		}
		t.Fatalf("no %s.%s", of, name)
	}
	for _, c := range []struct{ of, name, required, missing string }{
		{"scsi_device", "budget_map", "scsi_device.budget_map.map", ""},
		{"scsi_cmnd", "device", "scsi_cmnd.device", ""},
		{"Scsi_Host", "host_no", "Scsi_Host.host_no", ""},
		{"Scsi_Host", "host_tagset", "", "Scsi_Host.host_tagset"},
		{"Scsi_Host", "tag_set", "", "Scsi_Host.tag_set.nr_hw_queues"},
		{"scsi_cmnd", "budget_token", "", "scsi_cmnd.budget_token"},
		{"request", "", "", "request.tag"},
		{"blk_mq_hw_ctx", "queue_num", "", "blk_mq_hw_ctx.queue_num"},
	} {
		types := scsiTypes()
		drop(types, c.of, c.name)
		l, err := FindLayout(spec(t, structs(types)...))
		var missing *MissingFieldError
		switch {
		case c.required != "":
			if !errors.As(err, &missing) || missing.Field != c.required {
				t.Errorf("without %s.%s: got %v, want a MissingFieldError of %s", c.of, c.name, err, c.required)
			}
		case err != nil:
			t.Errorf("without %s.%s: %v", c.of, c.name, err)
		case !strings.Contains(strings.Join(l.Missing(), " "), c.missing):
			t.Errorf("without %s.%s: missing are %v, want %s among them", c.of, c.name, l.Missing(), c.missing)
		default:
			for _, k := range kinds { // a program for what there is
				assemble(t, l, k.make)
			}
		}
	}
}

// TestLoadLayout looks at kernels by what their sysfs has.
func TestLoadLayout(t *testing.T) {
	all := encode(t, structs(scsiTypes())...)
	none := encode(t, u32)
	for _, c := range []struct {
		name  string
		files map[string][]byte
		want  error
	}{
		{"built in", map[string][]byte{"kernel/btf/vmlinux": all}, nil},
		{"no BTF", nil, ErrNoBTF},
		{"no SCSI", map[string][]byte{"kernel/btf/vmlinux": none}, ErrNoSCSI},
		{"a module without BTF", map[string][]byte{"kernel/btf/vmlinux": none, "module/scsi_mod/refcnt": nil}, ErrNoBTF},
		{"BTF that is cut off", map[string][]byte{"kernel/btf/vmlinux": all[:len(all)/2]}, errAny},
		{"module's BTF that is cut off", map[string][]byte{"kernel/btf/vmlinux": none, "kernel/btf/scsi_mod": all[:30]}, errAny},
	} {
		dir := t.TempDir()
		for name, b := range c.files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		_, err := loadLayout(dir)
		if c.want == errAny && err != nil {
			continue
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

var errAny = errors.New("any error")

func TestLayoutCheck(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*Layout)
		want string
	}{
		{"no request size", func(l *Layout) { l.RequestSize = 0 }, "request_size 0: want 1 to"},
		{"no fields", func(l *Layout) { l.Fields = nil }, "no scsi_cmnd.device"},
		{"far away", func(l *Layout) { l.Fields["request.tag"] = Field{Offset: 1 << 30, Size: 4} }, "request.tag: offset 1073741824"},
		{"negative", func(l *Layout) { l.Fields["request.tag"] = Field{Offset: -8, Size: 4} }, "request.tag: offset -8"},
		{"too large", func(l *Layout) { l.Fields["request.tag"] = Field{Size: 400} }, "400 bytes: want 1 to 4"},
		{"bits", func(l *Layout) { l.Fields["Scsi_Host.host_tagset"] = Field{Size: 1, Bit: 7, Bits: 2} }, "bits 7 to 9"},
	} {
		l := layout612()
		c.edit(l)
		if _, err := Open(Options{Layout: l}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
	for _, o := range []Options{{MaxDevices: -1}, {MaxCommands: -1}} {
		if _, err := Open(o); err == nil || !strings.Contains(err.Error(), "want at least 1") {
			t.Errorf("%+v: got %v", o, err)
		}
	}
}

// FuzzLayout takes layouts from outside, as Options does.
func FuzzLayout(f *testing.F) {
	raw, err := json.Marshal(layout612())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"request_size":1,"fields":{}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var l Layout
		if json.Unmarshal(raw, &l) != nil || l.check() != nil {
			return
		}
		for _, k := range kinds {
			ins, _ := assemble(t, &l, k.make)
			for i, in := range ins {
				if in.IsBuiltinCall() && in.Constant == int64(asm.FnProbeReadKernel) {
					if n := ins[i-3].Constant; n < 1 || n > 16 {
						t.Errorf("%s: a read of %d bytes", k.name, n)
					}
				}
			}
		}
	})
}
