package conformance

import (
	"path/filepath"
	"testing"

	"lunlab/test/kernel"
	"lunlab/test/need"
)

// multipathScript runs in a guest: one LUN by two portals, which multipathd
// makes one disk of. Data is written and verified on it all the time, each
// pass with other contents, while first one portal and then the other loses its
// address and gets it back.
const multipathScript = `
cat > lab.yaml <<END
targets:
  - name: disk
    luns: [{lun: 0, store: {kind: mem, size: 64MiB}}]
END
ip addr add 10.0.0.1/32 dev lo
ip addr add 10.0.0.2/32 dev lo
start --listen 10.0.0.1:3260 --listen 10.0.0.2:3260
initiator "node.session.timeo.replacement_timeout = 2"
iscsiadm -m discovery -t sendtargets -p 10.0.0.1
iscsiadm -m node -T $base:disk -p 10.0.0.1 --login
await '[ -b /dev/sda ]'
iscsiadm -m node -T $base:disk -p 10.0.0.2 --login
await '[ -b /dev/sdb ]'

# There is no udev: this is what tells that it has seen the disks, and the empty
# uid_attribute has multipathd ask them for their names itself.
mkdir -p /run/udev/data
for d in sda sdb; do echo "I:1" > /run/udev/data/b$(cat /sys/block/$d/dev); done
echo 'defaults {
  find_multipaths no
  uid_attribute ""
  path_grouping_policy multibus
  polling_interval 1
  max_polling_interval 1
  no_path_retry queue
}' > /etc/multipath.conf
multipathd -d > multipathd.log 2>&1 &
paths() { multipathd show paths raw format "%d %t %o"; }
# is tells whether multipathd takes a path for active or failed.
is() { case "$(paths)" in *"$1 $2"*) ;; *) false;; esac; }
await 'is sda active && is sdb active'
echo "paths: $(paths | cat | { while read -r l; do printf "%s, " "$l"; done; })"

pass=0
while [ ! -e enough ]; do
  pass=$((pass + 1))
  fio --name=w --filename=/dev/dm-0 --rw=randwrite --bs=8k --size=4M --randseed=$pass --verify=crc32c --verify_fatal=1 \
    --ioengine=libaio --direct=1 --iodepth=8 --minimal > fio.log 2>&1
done &
writer=$!

# without takes a portal away: I/O goes on over the other disk.
without() {
  await '[ $(written '$2') -gt 50 ]'
  ip addr del $1/32 dev lo
  await 'is '$2' failed'
  n=$(written $3)
  await '[ $(written '$3') -gt $((n + 600)) ]' # more than a pass
  echo "without $1: $2 has failed, $3 goes on"
  ip addr add $1/32 dev lo
  await 'is '$2' active'
  n=$(written $2)
  await '[ $(written '$2') -gt $((n + 100)) ]'
  echo "with $1 again: $2 is used"
}
without 10.0.0.1 sda sdb
without 10.0.0.2 sdb sda
echo > enough
wait $writer
echo "all passes verified"
status
multipathd shutdown
iscsiadm -m node -T $base:disk --logout
stop
`

// TestMultipath cuts one of two paths at a time under dm-multipath.
func TestMultipath(t *testing.T) {
	need.Program(t, "multipathd", "multipath-tools")
	// What multipathd loads by name.
	files := map[string]string{}
	for _, lib := range []string{"libchecktur.so", "libprioconst.so", "libpriosysfs.so", "libprioalua.so", "libforeign-nvme.so"} {
		found, _ := filepath.Glob("/lib/*multipath/" + lib)
		more, _ := filepath.Glob("/lib/*/multipath/" + lib)
		for _, f := range append(found, more...) {
			files[f] = f
		}
	}
	if len(files) == 0 {
		need.Missing(t, "multipathd's plugins are not where Debian has them, in /lib/multipath")
	}
	wantLines(t, inGuest(t, multipathScript, kernel.Config{Load: []string{"dm_multipath", "dm_service_time"}, Files: files},
		"iscsid", "iscsiadm", "ip", "fio", "multipathd"),
		`10\.0\.0\.1:3260,1 iqn\.2026-01\.example\.lunlab:disk`, `10\.0\.0\.2:3260,1 iqn\.2026-01\.example\.lunlab:disk`,
		`paths: .*`,
		`without 10\.0\.0\.1: sda has failed, sdb goes on`, `with 10\.0\.0\.1 again: sda is used`,
		`without 10\.0\.0\.2: sdb has failed, sda goes on`, `with 10\.0\.0\.2 again: sdb is used`,
		`all passes verified`, `2 sessions, 2 connections.*`, `server ended`)
}
