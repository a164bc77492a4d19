package conformance

import (
	"testing"

	"lunlab/test/kernel"
)

// linuxScript runs in a guest: a server, and the kernel's own initiator on two
// targets of it, with authentication and digests on the second; then data is
// written and verified on both.
const linuxScript = `
cat > lab.yaml <<END
targets:
  - name: plain
    limits: {can_queue: 40, cmd_per_lun: 30}
    luns: [{lun: 0, thin: true, store: {kind: mem, size: 64MiB}}]
  - name: guarded
    iscsi:
      access: [{chap: {user: me, secret: mysecretmysecret, target_user: lab, target_secret: labsecretlabsecret}}]
    luns: [{lun: 3, store: {kind: mem, size: 64MiB}}]
END
start
iscsistart -i $base:guest -t $base:plain -g 1 -a 127.0.0.1 -p 3260 -d 3
iscsistart -i $base:guest -t $base:guarded -g 1 -a 127.0.0.1 -p 3260 -u me -w mysecretmysecret -U lab -W labsecretlabsecret \
  --param "node.conn[0].iscsi.HeaderDigest=CRC32C" --param "node.conn[0].iscsi.DataDigest=CRC32C"
await '[ -b /dev/sda ] && [ -b /dev/sdb ]'
status
for d in sda sdb; do
  echo "$d: $(cat /sys/block/$d/device/model) depth $(cat /sys/block/$d/device/queue_depth)"
  fio --name=$d --filename=/dev/$d --rw=randwrite --bsrange=512-256k --size=32M --verify=crc32c --ioengine=libaio --direct=1 --iodepth=32 --minimal > /dev/null
  echo "$d verified"
done
status
stop
`

// TestLinuxInitiator has the kernel's own initiator use the target.
func TestLinuxInitiator(t *testing.T) {
	wantLines(t, inGuest(t, linuxScript, kernel.Config{}, "iscsistart", "ip", "fio"),
		`sda: .*`, `sda verified`, `sdb: .*`, `sdb verified`, `server ended`,
		`.*HeaderDigest=CRC32C DataDigest=CRC32C.*`, `2 sessions, 2 connections.*`)
}

// restartScript runs in a guest: iscsid and iscsiadm discover a target, log in
// with limits of their own, and log out; the server is killed and started again
// while data is written, and what was written is verified afterwards.
const restartScript = `
cat > lab.yaml <<END
targets:
  - name: disks
    luns: [{lun: 0, store: {kind: file, path: disk.img, size: 64MiB}}]
END
start
initiator "node.session.timeo.replacement_timeout = 300
node.session.cmds_max = 64
node.session.queue_depth = 17"
iscsiadm -m discovery -t sendtargets -p 127.0.0.1:3260
iscsiadm -m node -T $base:disks -p 127.0.0.1:3260 --login
await '[ -b /dev/sda ]'
echo "queue_depth $(cat /sys/block/sda/device/queue_depth)"
fio --name=w --filename=/dev/sda --rw=randwrite --bs=16k --size=32M --rate_iops=150 --do_verify=0 --verify=crc32c --ioengine=libaio --direct=1 --iodepth=8 --minimal > fio.log 2>&1 &
writer=$!
await '[ $(written sda) -gt 200 ]'
kill -KILL $server
before=$(written sda)
sleep 1
start
echo "restarted"
wait $writer
[ $(written sda) -gt $before ] && echo "written on"
status
fio --name=w --filename=/dev/sda --rw=randwrite --bs=16k --size=32M --verify_only --verify=crc32c --ioengine=libaio --direct=1 --iodepth=8 --minimal > /dev/null
echo "nothing lost"
iscsiadm -m node -T $base:disks -p 127.0.0.1:3260 --logout
status
[ ! -b /dev/sda ] && echo "logged out"
stop
`

// TestRestart kills the server under the kernel's initiator, and starts it again.
func TestRestart(t *testing.T) {
	wantLines(t, inGuest(t, restartScript, kernel.Config{}, "iscsid", "iscsiadm", "ip", "fio"),
		`127\.0\.0\.1:3260,1 iqn\.2026-01\.example\.lunlab:disks`,
		`queue_depth 17`, `restarted`, `written on`, `nothing lost`, `logged out`, `0 sessions, .*`, `server ended`)
}
