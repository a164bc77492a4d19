package kernel

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The lines are those of Linux 6.12.
func TestConsoleNamesComplaints(t *testing.T) {
	log := strings.Join([]string{
		"[    1.000000] scsi host0: TCM_Loopback",
		"[    2.100000] WARNING: CPU: 1 PID: 77 at drivers/ata/libata-scsi.c:755 ata_scsi_qc_new+0x5a/0x90",
		"[   22.100000] INFO: task swapper/0:1 blocked for more than 20 seconds.",
		"[   23.000000] BUG: kernel NULL pointer dereference, address: 0000000000000008",
		"[   23.000100] Oops: Oops: 0000 [#1] PREEMPT SMP NOPTI",
		"[   24.000000] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [fio:120]",
		"[   25.000000] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
		"[   26.000000] BUG: KASAN: slab-use-after-free in scsi_queue_rq+0x1/0x2",
		"[   26.100000] watchdog: Watchdog detected hard LOCKUP on cpu 1",
		"[   26.200000] BUG: workqueue lockup - pool cpus=1 node=0 flags=0x0 nice=0 stuck for 33s!",
		"[   26.300000] BUG: sleeping function called from invalid context at kernel/locking/mutex.c:585",
		"[   26.400000] WARNING: possible circular locking dependency detected",
		"[   26.500000] WARNING: suspicious RCU usage",
		"[   26.600000] WARNING: block/blk-mq.c:3321 at blk_mq_free_request+0x12/0x20, CPU#1: fio/120",
		"[   27.000000] list_add corruption. prev->next should be next",
		"[   28.000000] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000000",
	}, "\r\n") + "\r\n"
	c := new(console)
	for _, b := range []byte(log) { // in the smallest pieces
		c.Write([]byte{b})
	}
	var kinds []string
	for _, k := range c.Complaints() {
		kinds = append(kinds, k.Kind)
	}
	want := []string{"warning", "hung task", "oops", "oops", "soft lockup", "RCU stall", "sanitizer", "hard lockup",
		"workqueue lockup", "atomic context", "lockdep", "lockdep", "warning", "list corruption", "panic"}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}

func TestConsoleKeepsTheEnd(t *testing.T) {
	c := new(console)
	for i := range 1000 {
		fmt.Fprintf(c, "line %d\n", i)
	}
	fmt.Fprint(c, "no end")
	if diff := cmp.Diff([]string{"line 998", "line 999", "no end"}, c.Tail(3)); diff != "" {
		t.Errorf("tail (-want +got):\n%s", diff)
	}
	for range 2 * MaxComplaints {
		fmt.Fprintln(c, "BUG: again")
	}
	if n := len(c.Complaints()); n != MaxComplaints {
		t.Errorf("%d complaints kept, want %d", n, MaxComplaints)
	}
	// A guest that never ends a line is not kept in memory whole.
	for range 1000 {
		c.Write(make([]byte, 1000))
	}
	if n := len(c.part); n > 2*maxLine {
		t.Errorf("%d bytes kept of a line without an end", n)
	}
}

func FuzzConsole(f *testing.F) {
	f.Add([]byte("BUG: x\nKernel panic - not syncing\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := new(console)
		c.Write(b)
		if n := len(c.Tail(5)); n > 5 {
			t.Errorf("%d lines, wanted at most 5", n)
		}
	})
}
