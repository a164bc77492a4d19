package probe_test

import (
	"fmt"
	"testing"

	"lunlab/queue"
	"lunlab/test/probe"
)

// virtioHosts are QEMU's virtio-scsi devices of the guest, in the order of their
// disks' serial numbers. can_queue is the virtqueue's size.
var virtioHosts = []queue.Limits{
	{CanQueue: 64, CmdPerLUN: 64, HWQueues: 1, ClampsDepth: true},
	{CanQueue: 64, CmdPerLUN: 16, HWQueues: 1, ClampsDepth: true},
	{CanQueue: 64, CmdPerLUN: 64, HWQueues: 2, ClampsDepth: true},
}

// virtioArgs are QEMU's for those.
func virtioArgs() []string {
	var args []string
	for i, l := range virtioHosts {
		args = append(args,
			"-device", fmt.Sprintf("virtio-scsi-pci,id=hba%d,num_queues=%d,virtqueue_size=%d,cmd_per_lun=%d", i, l.HWQueues, l.CanQueue, l.CmdPerLUN),
			"-drive", fmt.Sprintf("if=none,id=disk%d,driver=null-co,size=8M,read-zeroes=on", i),
			"-device", fmt.Sprintf("scsi-hd,bus=hba%d.0,scsi-id=%d,drive=disk%d", i, i, i))
	}
	return args
}

// TestGuestVirtio holds what the kernel makes of virtio-scsi's limits, which
// clamps what is written to queue_depth to cmd_per_lun, against the predictions.
func TestGuestVirtio(t *testing.T) {
	guest(t)
	p := open(t, probe.Options{})
	for i, limits := range virtioHosts {
		t.Run(fmt.Sprintf("%d,%d,%d", limits.HWQueues, limits.CanQueue, limits.CmdPerLUN), func(t *testing.T) {
			d := waitDisk(t, fmt.Sprintf("/sys/bus/virtio/drivers/virtio_scsi/*/host*/target*:0:%d/*:*/block/*", i))
			if err := probe.Poke(d.addr); err != nil {
				t.Fatal(err)
			}
			for _, write := range []int{32, 8} {
				want, err := guestRules(t).Predict(limits, write)
				if err != nil {
					t.Fatal(err)
				}
				got := d.seen(p)
				seen := got.Limits()
				seen.ClampsDepth = true
				if seen != limits || got.Allocated() != want.Allocated {
					t.Errorf("got %+v, map %s; want %+v: %s", seen, got.Map, limits, want.Reason)
				}
				if w := want.Lowered; (set(d.attr("queue_depth"), write) == nil) != w.Accepted || d.get("queue_depth") != int64(w.QueueDepth) {
					t.Errorf("wrote %d, reads %d; want %+v", write, d.get("queue_depth"), w)
				}
			}
		})
	}
}
