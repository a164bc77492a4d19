package conformance

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lunlab/test/kernel"
	"lunlab/test/kernel/kerneltest"
	"lunlab/test/need"
)

// linuxScript runs in a guest: a server, and the kernel's own initiator on two
// targets of it, with authentication and digests on the second; then data is
// written and verified on both.
const linuxScript = `
set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
ip link set lo up
mkdir -p /tmp /run/lock/iscsi /etc/iscsi
cd /tmp
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
/opt/lunlab serve -f lab.yaml --socket /tmp/socket > serve.log 2>&1 &
server=$!
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  /opt/lunlab status --socket /tmp/socket > /dev/null 2>&1 && break
  sleep 0.5
done
base=iqn.2026-01.example.lunlab
iscsistart -i $base:guest -t $base:plain -g 1 -a 127.0.0.1 -p 3260 -d 3
iscsistart -i $base:guest -t $base:guarded -g 1 -a 127.0.0.1 -p 3260 -u me -w mysecretmysecret -U lab -W labsecretlabsecret \
  --param "node.conn[0].iscsi.HeaderDigest=CRC32C" --param "node.conn[0].iscsi.DataDigest=CRC32C"
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  [ -b /dev/sda ] && [ -b /dev/sdb ] && break
  sleep 0.5
done
/opt/lunlab status --socket /tmp/socket
for d in sda sdb; do
  echo "$d: $(cat /sys/block/$d/device/model) depth $(cat /sys/block/$d/device/queue_depth)"
  fio --name=$d --filename=/dev/$d --rw=randwrite --bsrange=512-256k --size=32M --verify=crc32c --ioengine=libaio --direct=1 --iodepth=32 --minimal > /dev/null
  echo "$d verified"
done
/opt/lunlab status --socket /tmp/socket
kill -INT $server
wait $server
echo "server ended"
`

// restartScript runs in a guest: iscsid and iscsiadm discover a target, log in
// with limits of their own, and log out; the server is killed and started again
// while data is written, and what was written is verified afterwards.
const restartScript = `
set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
ip link set lo up
mkdir -p /tmp /run/lock/iscsi /etc/iscsi
cd /tmp
trap 'r=$?; [ $r = 0 ] || { echo "status $r"; cat *.log; }' EXIT
base=iqn.2026-01.example.lunlab
echo "root:x:0:0::/:/bin/sh" > /etc/passwd # iscsid asks who calls
echo "InitiatorName=$base:guest" > /etc/iscsi/initiatorname.iscsi
cat > /etc/iscsi/iscsid.conf <<END
node.startup = manual
node.session.timeo.replacement_timeout = 60
node.conn[0].timeo.login_timeout = 5
node.conn[0].timeo.noop_out_interval = 1
node.conn[0].timeo.noop_out_timeout = 2
node.session.cmds_max = 64
node.session.queue_depth = 17
END
cat > lab.yaml <<END
targets:
  - name: disks
    luns: [{lun: 0, store: {kind: file, path: disk.img, size: 64MiB}}]
END
start() {
  /opt/lunlab serve -f lab.yaml --socket /tmp/socket >> serve.log 2>&1 &
  server=$!
  for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    /opt/lunlab status --socket /tmp/socket > /dev/null 2>&1 && return
    sleep 0.5
  done
  cat serve.log
  return 1
}
start
iscsid -f > iscsid.log 2>&1 &
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  case "$(cat /proc/net/unix)" in *@ISCSIADM_ABSTRACT_NAMESPACE*) break;; esac # it listens
  sleep 0.5
done
iscsiadm -m discovery -t sendtargets -p 127.0.0.1:3260
iscsiadm -m node -T $base:disks -p 127.0.0.1:3260 --login
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  [ -b /dev/sda ] && break
  sleep 0.5
done
echo "queue_depth $(cat /sys/block/sda/device/queue_depth)"
fio --name=w --filename=/dev/sda --rw=randwrite --bs=16k --size=32M --rate_iops=150 --do_verify=0 --verify=crc32c --ioengine=libaio --direct=1 --iodepth=8 --minimal > fio.log 2>&1 &
writer=$!
sleep 3
kill -KILL $server
sleep 1
start
echo "restarted"
wait $writer
/opt/lunlab status --socket /tmp/socket
fio --name=w --filename=/dev/sda --rw=randwrite --bs=16k --size=32M --verify_only --verify=crc32c --ioengine=libaio --direct=1 --iodepth=8 --minimal > /dev/null
echo "nothing lost"
iscsiadm -m node -T $base:disks -p 127.0.0.1:3260 --logout
/opt/lunlab status --socket /tmp/socket
[ ! -b /dev/sda ] && echo "logged out"
kill -INT $server
wait $server
echo "server ended"
`

// inGuest runs a script in a guest with a server, and returns what it printed.
func inGuest(t *testing.T, script string, programs ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a kernel")
	}
	for _, p := range programs {
		pkg := "open-iscsi"
		switch p {
		case "ip":
			pkg = "iproute2"
		case "fio":
			pkg = "fio"
		}
		need.Program(t, p, pkg)
	}
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	lunlab := kerneltest.Lunlab(t)
	vm := kerneltest.Boot(t, kerneltest.Stock(t), kernel.Config{
		Init:  lunlab,
		Load:  []string{"sd_mod", "iscsi_tcp", "crc32c_generic"},
		Files: map[string]string{"/opt/lunlab": lunlab, "/script": path},
	}, append(programs, "sh", "mkdir", "cat", "sleep")...)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var out strings.Builder
	code, err := vm.Run(ctx, []string{need.Program(t, "sh", "dash"), "/script"}, nil, &out, &out)
	if err != nil || code != 0 {
		t.Fatalf("exit status %d (%v)\n%s", code, err, out.String())
	}
	t.Log(out.String())
	for _, c := range vm.Complaints() {
		t.Errorf("the kernel complained: %v", c)
	}
	return out.String()
}

// TestLinuxInitiator has the kernel's own initiator use the target.
func TestLinuxInitiator(t *testing.T) {
	wantLines(t, inGuest(t, linuxScript, "iscsistart", "ip", "fio"),
		`sda: .*`, `sda verified`, `sdb: .*`, `sdb verified`, `server ended`,
		`.*HeaderDigest=CRC32C DataDigest=CRC32C.*`, `2 sessions, 2 connections.*`)
}

// TestRestart kills the server under the kernel's initiator, and starts it again.
func TestRestart(t *testing.T) {
	wantLines(t, inGuest(t, restartScript, "iscsid", "iscsiadm", "ip", "fio"),
		`127\.0\.0\.1:3260,1 iqn\.2026-01\.example\.lunlab:disks`,
		`queue_depth 17`, `restarted`, `nothing lost`, `logged out`, `0 sessions, .*`, `server ended`)
}
