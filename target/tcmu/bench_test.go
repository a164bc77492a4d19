package tcmu_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/lun/store/mem"
	"lunlab/target"
	"lunlab/target/tcmu"
)

var metricRE = regexp.MustCompile(`(?m)^metric (\S+) (\d+)$`)

// BenchmarkGuest measures 4 KiB random reads through tcm_loop in a guest, in
// IOPS at several depths: of a disk in memory of ours, of the same on a
// goroutine a command, and, to compare with, of the kernel's own memory disk.
func BenchmarkGuest(b *testing.B) {
	vm := boot(b)
	for b.Loop() {
		out, err := inside(b, vm, "-test.run", "^TestSpeed$")
		if err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		iops := map[string]float64{}
		for _, m := range metricRE.FindAllStringSubmatch(out, -1) {
			n, err := strconv.ParseFloat(m[2], 64)
			if err != nil {
				b.Fatal(err)
			}
			iops[m[1]] = n
			b.ReportMetric(n, m[1]+"-IOPS")
		}
		for _, d := range depths {
			b.ReportMetric(iops["tcmu-"+d]/iops["kernel-"+d], "tcmu/kernel-"+d)
		}
	}
}

var depths = []string{"1", "32", "128"}

// TestSpeed is BenchmarkGuest's part in the guest.
func TestSpeed(t *testing.T) {
	if os.Getenv(inGuest) == "" {
		t.Skip("runs in BenchmarkGuest's guest")
	}
	if err := tcmu.Prepare(t.Context(), tcmu.Options{}); err != nil {
		t.Fatal(err)
	}
	e, err := tcmu.Open(tcmu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	measure := func(name, disk string) {
		for _, d := range depths {
			out := run(t, fio(disk, "--rw=randread", "--iodepth="+d, "--time_based", "--runtime=3", "--output-format=terse", "--terse-version=3")...)
			f := strings.Split(out, ";")
			if len(f) < 8 {
				t.Fatalf("fio: %s", out)
			}
			fmt.Printf("metric %s-%s %s\n", name, d, f[7])
		}
	}
	s, err := mem.New(64 << 20)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := lun.NewDisk(s, lun.DiskOptions{})
	if err != nil {
		t.Fatal(err)
	}
	loop := tcmu.LoopConfig{CanQueue: 256, CmdPerLUN: 256}
	b := attach(t, e, disk, tcmu.Config{}, loop)
	measure("tcmu", b.disk.Block)
	t.Logf("%+v", b.dev.Stats())
	b.detach(t)
	b = attach(t, e, target.NewMeter(disk), tcmu.Config{}, loop)
	measure("goroutines", b.disk.Block)
	t.Logf("%+v", b.dev.Stats())
	b.detach(t)

	// The kernel's memory disk, on a host of the same kind.
	const core = "/sys/kernel/config/target/core/rd_mcp_0/r0"
	const lunDir = "/sys/kernel/config/target/loopback/" + testWWN + "/tpgt_1/lun/lun_0"
	host, err := e.CreateLoop(t.Context(), tcmu.LoopConfig{WWN: testWWN, CanQueue: 256, CmdPerLUN: 256})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []func() error{
		func() error { return os.MkdirAll(core, 0o755) },
		func() error { return os.WriteFile(core+"/control", []byte("rd_pages=16384"), 0) },
		func() error { return os.WriteFile(core+"/enable", []byte("1"), 0) },
		func() error { return os.Mkdir(lunDir, 0o755) },
		func() error { return os.Symlink(core, lunDir+"/r0") },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	var found []string
	for end := time.Now().Add(10 * time.Second); len(found) == 0 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		found, _ = filepath.Glob(fmt.Sprintf("/sys/class/scsi_device/%d:0:1:0/device/block/sd*", host.Host()))
	}
	if len(found) == 0 {
		t.Fatal("the kernel's memory disk isn't there")
	}
	time.Sleep(200 * time.Millisecond)
	measure("kernel", "/dev/"+filepath.Base(found[0]))
}
