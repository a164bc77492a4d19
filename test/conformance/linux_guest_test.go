package conformance

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lunlab/test/kernel"
	"lunlab/test/kernel/kerneltest"
	"lunlab/test/need"
)

// prelude begins each script that runs in a guest: the network, and what the
// scripts share.
const prelude = `
set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
ip link set lo up
mkdir -p /tmp /run/lock/iscsi /etc/iscsi
cd /tmp
trap 'r=$?; [ $r = 0 ] || { echo "status $r"; cat *.log; }' EXIT
base=iqn.2026-01.example.lunlab

# await waits until a command succeeds.
await() {
  tries=0
  until eval "$1"; do
    tries=$((tries + 1))
    [ $tries -lt 400 ] || { echo "in vain: $1"; exit 1; }
    sleep 0.3
  done
}

# status says what the server does.
status() { /opt/lunlab status --socket /tmp/socket; }

# start starts the server.
start() {
  /opt/lunlab serve -f lab.yaml --socket /tmp/socket "$@" >> serve.log 2>&1 &
  server=$!
  await 'status > /dev/null 2>&1'
}

# stop has the server end in order.
stop() {
  kill -INT $server
  wait $server
  echo "server ended"
}

# initiator starts iscsid, with these settings.
initiator() {
  echo "root:x:0:0::/:/bin/sh" > /etc/passwd # iscsid asks who calls
  echo "InitiatorName=$base:guest" > /etc/iscsi/initiatorname.iscsi
  echo "node.startup = manual
node.conn[0].timeo.login_timeout = 5
node.conn[0].timeo.noop_out_interval = 1
node.conn[0].timeo.noop_out_timeout = 2
$1" > /etc/iscsi/iscsid.conf
  iscsid -f > iscsid.log 2>&1 &
  # It listens.
  await 'case "$(cat /proc/net/unix)" in *@ISCSIADM_ABSTRACT_NAMESPACE*) ;; *) false;; esac'
}

# written is how many writes a disk has done.
written() {
  read -r _ _ _ _ n _ < /sys/block/$1/stat
  echo $n
}
`

// scriptPackages has what Debian calls the packages of the scripts' programs.
var scriptPackages = map[string]string{
	"ip": "iproute2", "fio": "fio", "multipathd": "multipath-tools",
	"dmesg": "util-linux", "fstrim": "util-linux", "blkdiscard": "util-linux", "blkzone": "util-linux", "mount": "mount", "umount": "mount", "mkswap": "util-linux", "swapon": "mount", "swapoff": "mount",
	"readlink": "coreutils", "tr": "coreutils", "dd": "coreutils", "head": "coreutils", "cp": "coreutils", "rm": "coreutils", "sync": "coreutils",
	"grep": "grep", "cmp": "diffutils", "mkfs.ext4": "e2fsprogs", "mkfs.xfs": "xfsprogs",
	"hdparm": "hdparm", "smartctl": "smartmontools",
	"iscsid": "open-iscsi", "iscsiadm": "open-iscsi", "iscsistart": "open-iscsi",
}

// inGuest runs a script after the prelude in a guest that has lunlab, and returns
// what it printed. What cfg names of modules and files goes along.
func inGuest(t *testing.T, script string, cfg kernel.Config, programs ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a kernel")
	}
	for _, p := range programs {
		pkg := scriptPackages[p]
		if strings.HasPrefix(p, "sg_") {
			pkg = "sg3-utils"
		}
		need.Program(t, p, pkg)
	}
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte(prelude+script), 0o600); err != nil {
		t.Fatal(err)
	}
	lunlab := kerneltest.Lunlab(t)
	files := map[string]string{"/opt/lunlab": lunlab, "/script": path}
	maps.Copy(files, cfg.Files)
	cfg.Init, cfg.Files = lunlab, files
	cfg.Load = append(cfg.Load, "sd_mod", "iscsi_tcp", "crc32c_generic")
	vm := kerneltest.Boot(t, kerneltest.Stock(t), cfg, append(programs, "sh", "mkdir", "cat", "sleep")...)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
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
