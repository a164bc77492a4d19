package conformance

import (
	"testing"

	"lunlab/test/kernel"
)

// faultScript runs in a guest: a disk of the guest's own kernel, through TCMU and
// tcm_loop, that fails on purpose, and what the kernel does about it.
const faultScript = `
fault() { /opt/lunlab fault --socket /tmp/socket "$@"; }
reads() { dd if=/dev/$d of=/dev/null iflag=direct bs=512 "$@" 2> dd.log; }
cat > lab.yaml <<END
targets:
  - name: a
    limits: {can_queue: 64, cmd_per_lun: 32}
    luns: [{lun: 0, store: {kind: mem, size: 64MiB}}]
END
attach
d=$(ls /sys/class/scsi_disk/*/device/block)
q=/sys/block/$d/device

fault add 0 lba=2048-2049 medium-error
reads skip=2044 count=4 && echo "before it: read"
reads skip=2044 count=8 || echo "over it: $(cat dd.log)"
echo "kernel log: $(dmesg | grep 'critical medium error')"
dd if=/dev/zero of=/dev/$d oflag=direct bs=1024 seek=1024 count=1 2> dd.log && echo "written"
reads skip=2044 count=8 && echo "after that: read"

fault add 0 cmd=read status=busy count=5
reads count=8 && echo "BUSY: read"

echo 2 > $q/timeout
fault add 0 cmd=read never count=1
reads count=1 &
reader=$!
await 'fault list | grep -q " 1 *1 *cmd=read never"'
echo "no answer: held"
wait $reader && echo "no answer: read"
fault add 0 cmd=read answer-after-abort count=1
reads count=1 && echo "late answer: read"
echo 30 > $q/timeout

fault add 0 cmd=write nth=50 drop=ring
fio --name=w --filename=/dev/$d --rw=randwrite --bs=4k --size=1M --verify=crc32c --ioengine=libaio --direct=1 --iodepth=8 --minimal > fio.log 2>&1 && echo "ring dropped: verified"

fault add 0 above=4 status=task-set-full
fault add 0 delay=5ms
echo "depth $(cat $q/queue_depth)"
echo 200 > $q/queue_ramp_up_period
fio --name=r --filename=/dev/$d --rw=randread --bs=4k --time_based --runtime=600 --ioengine=libaio --direct=1 --iodepth=32 --minimal > fio.log 2>&1 &
reader=$!
await '[ $(cat $q/queue_depth) -lt 32 ]'
echo "ramped down"
fault list
fault clear --all
await '[ $(cat $q/queue_depth) -ge 32 ]'
echo "ramped up"
kill $reader
wait $reader || true

detach
echo "detached"
`

// TestAttachLinux has a Linux kernel meet faults, and a configuration that changes.
func TestAttachLinux(t *testing.T) {
	out := inGuest(t, attachFunctions+faultScript+reattachScript, kernel.Config{
		Load: []string{"sd_mod", "configfs"}, Carry: []string{"target_core_user", "tcm_loop"},
	}, "ip", "dd", "fio", "dmesg", "grep", "ls", "readlink", "mkswap", "swapon", "swapoff")
	t.Run("faults", func(t *testing.T) { wantFaults(t, out) })
	t.Run("attach", func(t *testing.T) { wantNoComplaint(t, out) })
	t.Run("reload", func(t *testing.T) { wantReattached(t, out) })
}

func wantFaults(t *testing.T, out string) {
	wantLines(t, out,
		`before it: read`, `over it: .*No data available`, `kernel log: .*critical medium error, dev sd[a-z]+, sector 2048 .*`, `written`, `after that: read`,
		`BUSY: read`, `no answer: held`, `no answer: read`, `late answer: read`, `ring dropped: verified`,
		`depth 32`, `ramped down`, `ramped up`, `detached`,
		`a/0 +1 +\d+ +1 +0 +lba=2048-2049 medium-error`,
		`a/0 +2 +\d+ +5 +0 +cmd=read status=busy count=5`,
		`a/0 +3 +\d+ +1 +0 +cmd=read never count=1`,
		`a/0 +4 +\d+ +1 +0 +cmd=read answer-after-abort count=1`,
		`a/0 +5 +\d+ +1 +0 +cmd=write nth=50 drop=ring`,
		`a/0 +6 +\d+ +\d\d+ +\d+ +above=4 status=task-set-full`)
}
