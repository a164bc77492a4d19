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

// TestLinuxInitiator has the kernel's own initiator use the target.
func TestLinuxInitiator(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a kernel")
	}
	for p, pkg := range map[string]string{"iscsistart": "open-iscsi", "ip": "iproute2", "fio": "fio"} {
		need.Program(t, p, pkg)
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte(linuxScript), 0o600); err != nil {
		t.Fatal(err)
	}
	lunlab := kerneltest.Lunlab(t)
	vm := kerneltest.Boot(t, kerneltest.Stock(t), kernel.Config{
		Init:  lunlab,
		Load:  []string{"sd_mod", "iscsi_tcp", "crc32c_generic"},
		Files: map[string]string{"/opt/lunlab": lunlab, "/script": script},
	}, "sh", "ip", "iscsistart", "fio", "mkdir", "cat", "sleep")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var out strings.Builder
	code, err := vm.Run(ctx, []string{need.Program(t, "sh", "dash"), "/script"}, nil, &out, &out)
	if err != nil || code != 0 {
		t.Fatalf("exit status %d (%v)\n%s", code, err, out.String())
	}
	t.Log(out.String())
	wantLines(t, out.String(), `sda: .*`, `sda verified`, `sdb: .*`, `sdb verified`, `server ended`,
		`.*HeaderDigest=CRC32C DataDigest=CRC32C.*`, `2 sessions, 2 connections.*`)
	if c := vm.Complaints(); len(c) > 0 {
		t.Errorf("the kernel complained: %v", c)
	}
}
