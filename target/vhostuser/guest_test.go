package vhostuser_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/lun/fault"
	"lunlab/target/vhostuser"
	"lunlab/test/kernel"
	"lunlab/test/kernel/kerneltest"
)

// guest is a Linux guest with a device's disks.
type guest struct {
	*testing.T
	vm   *kernel.VM
	host string   // "host0"
	disk []string // "sda", by LUN
}

func bootGuest(t *testing.T, o vhostuser.Options, luns int) *guest {
	t.Helper()
	path, d := serve(t, o)
	o = d.Options()
	vm := kerneltest.Boot(t, kerneltest.Stock(t), kernel.Config{
		SMP: 2, Memory: 512, Load: []string{"virtio_scsi", "sd_mod"},
		QEMUArgs: []string{
			"-object", "memory-backend-memfd,id=mem,size=512M,share=on", "-numa", "node,memdev=mem",
			"-chardev", "socket,id=lunlab,path=" + path,
			"-device", fmt.Sprintf("vhost-user-scsi-pci,chardev=lunlab,num_queues=%d,virtqueue_size=%d,cmd_per_lun=%d,t10_pi=on", o.Queues, o.QueueSize, o.CmdPerLUN),
		},
	}, "fio", "cat", "ls", "dmesg")
	g := &guest{T: t, vm: vm, disk: make([]string, luns)}
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if n := strings.Count(g.run("dmesg"), "Attached SCSI disk"); n == luns {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%d disks attached, want %d", n, luns)
		}
	}
	for _, a := range strings.Fields(g.run("ls", "/sys/class/scsi_disk")) {
		var h, l int
		if _, err := fmt.Sscanf(a, "%d:0:0:%d", &h, &l); err != nil || l >= luns {
			t.Fatalf("disk %s", a)
		}
		g.host = fmt.Sprintf("host%d", h)
		g.disk[l] = strings.TrimSpace(g.run("ls", filepath.Join("/sys/class/scsi_disk", a, "device/block")))
	}
	return g
}

func (g *guest) run(argv ...string) string {
	g.Helper()
	return kerneltest.Run(g.T, g.vm, argv...)
}

// attribute wants the content of a file below /sys.
func (g *guest) attribute(want string, elem ...string) {
	g.Helper()
	p := filepath.Join(append([]string{"/sys"}, elem...)...)
	if got := strings.TrimSpace(g.run("cat", p)); got != want {
		g.Errorf("%s is %s, want %s", p, got, want)
	}
}

// TestGuest has a Linux guest use a device: it sees the limits, verifies protection
// information, and reads what it wrote.
func TestGuest(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a kernel")
	}
	const size = 32 << 20
	corrupt := fault.New(memoryDisk(t, size, lun.DiskOptions{Protection: 1}))
	tg := targetOf(t, corrupt, memoryDisk(t, size, lun.DiskOptions{Protection: 3}), memoryDisk(t, size, lun.DiskOptions{}), memoryDisk(t, size, lun.DiskOptions{BlockSize: 4096}))
	g := bootGuest(t, vhostuser.Options{Target: tg, Queues: 4, QueueSize: 64, CmdPerLUN: 16}, 4)

	g.attribute("64", "class/scsi_host", g.host, "can_queue")
	g.attribute("16", "class/scsi_host", g.host, "cmd_per_lun")
	g.attribute("2", "class/scsi_host", g.host, "nr_hw_queues") // as many as CPUs
	g.attribute("16", "block", g.disk[2], "device/queue_depth")

	for l, kind := range map[int]string{0: "1", 1: "3", 2: "0"} {
		address := filepath.Join("class/scsi_disk", fmt.Sprintf("%s:0:0:%d", strings.TrimPrefix(g.host, "host"), l))
		g.attribute(kind, address, "protection_type")
		mode := "dix" + kind
		if kind == "0" {
			mode = "none"
		}
		g.attribute(mode, address, "protection_mode")
		if kind != "0" {
			g.attribute("1", address, "app_tag_own")
		}
	}
	log := g.run("dmesg")
	for l, want := range map[int]string{0: "Enabling DIX T10-DIF-TYPE1-CRC", 1: "Enabling DIX T10-DIF-TYPE3-CRC"} {
		if !strings.Contains(log, fmt.Sprintf("[%s] %s", g.disk[l], want)) {
			t.Errorf("the kernel's log doesn't say [%s] %s", g.disk[l], want)
		}
	}
	for l, format := range []string{"T10-DIF-TYPE1-CRC", "T10-DIF-TYPE3-CRC"} {
		g.attribute(format, "block", g.disk[l], "integrity/format")
		g.attribute("1", "block", g.disk[l], "integrity/read_verify")
		g.attribute("1", "block", g.disk[l], "integrity/write_generate")
		// Bytes of the application tag, and of type 3's reference tag.
		g.attribute([]string{"2", "6"}[l], "block", g.disk[l], "integrity/tag_size")
	}

	args := []string{"fio", "--rw=randwrite", "--bsrange=4k-64k", "--size=4M", "--verify=crc32c", "--ioengine=libaio", "--direct=1", "--iodepth=16"}
	for l, d := range g.disk {
		args = append(args, fmt.Sprintf("--name=lun%d", l), "--filename=/dev/"+d)
	}
	g.run(args...)

	// A block that is corrupted behind the target's own checks: the kernel finds it.
	r, err := fault.Parse("cmd=read lba=2048 corrupt=100")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := corrupt.Add(r); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	code, err := g.vm.Run(ctx, []string{"fio", "--name=bad", "--filename=/dev/" + g.disk[0], "--rw=read", "--bs=4k", "--offset=1M", "--size=4k", "--direct=1"}, nil, &out, &out)
	if err != nil || code == 0 || !strings.Contains(out.String(), "err=84") {
		t.Errorf("a corrupt block: exit status %d, %v; want EILSEQ, 84:\n%s", code, err, &out)
	}
	if log := g.run("dmesg"); !strings.Contains(log, "guard tag error at sector 2048") {
		t.Error("the kernel's log doesn't tell of the guard tag")
	}
	if c := g.vm.Complaints(); len(c) > 0 {
		t.Errorf("the kernel complained: %v", c)
	}
	for _, lu := range tg.Units() {
		if n := lu.InFlight(); n != 0 {
			t.Errorf("LUN %d: %d commands in flight at rest", lu.Number(), n)
		}
	}
}
