package conformance

import "testing"

// attachFunctions attach what lab.yaml says to the guest's own kernel.
const attachFunctions = `
attach() {
  /opt/lunlab attach -f lab.yaml --socket /tmp/socket > attach.log 2>&1 &
  server=$!
  await 'grep -q "^attached" attach.log'
}
detach() {
  kill -INT $server
  wait $server
}
`

// reattachScript runs in a guest: lab.yaml changes under disks of its own kernel.
const reattachScript = `
# block names the disk of target $1 with LUN $2.
block() {
  h=$(grep "^$1 *$2 " attach.log)
  set -- $h
  echo ${3#/dev/}
}
# reload has lab.yaml read again, and waits for what is said then.
reload() {
  kill -HUP $server
  await "grep -q '$1' attach.log"
}
errors() { echo $(($(cat /sys/block/$1/device/ioerr_cnt))); }

cat > lab.yaml <<END
pools: [{name: p, size: 4MiB, exhaustion: temporary}]
targets:
  - name: a
    limits: {can_queue: 64}
    luns:
      - {lun: 0, serial: zero, store: {kind: mem, size: 64MiB}}
      - {lun: 1, store: {kind: mem, size: 16MiB, cache: 1MiB}}
      - {lun: 2, serial: two, thin: true, store: {kind: mem, size: 16MiB, pool: p}}
  - name: b
    alua: {groups: [{id: 1, portal_groups: [1]}]}
    luns:
      - {lun: 3, thin: true, block_size: 4096, store: {kind: mem, size: 16MiB}}
      - {lun: 4, read_only: true, store: {kind: mem, size: 16MiB}}
      - {lun: 5, removable: true, store: {kind: mem, size: 16MiB}}
      - {lun: 6, zones: {size: 4MiB, conventional: 1, max_open: 2}, store: {kind: mem, size: 64MiB}}
      - {lun: 7, zones: {size: 4MiB, host_aware: true}, store: {kind: mem, size: 64MiB}}
      - {lun: 8, streams: 4, write_cache: false, store: {kind: "null", size: 1TiB}}
END
dmesg -C
attach
await '[ $(dmesg | grep -c "Attached SCSI") -ge 9 ]'
echo "== log"
dmesg
echo "== end of log"
zero=$(block a 0)
one=$(block a 1)
gone=$(readlink -f /sys/block/$one/device)
two=$(block a 2)
echo "without LUN 0: $(block b 3)"
/opt/lunlab powercut --socket /tmp/socket a/1

cat > lab.yaml <<END
pools: [{name: p, size: 16MiB, exhaustion: temporary}]
targets:
  - name: a
    limits: {can_queue: 64}
    luns:
      - {lun: 0, serial: zero, revision: new, store: {kind: mem, size: 128MiB}}
      - {lun: 2, serial: two, thin: true, store: {kind: mem, size: 16MiB, pool: p}}
      - {lun: 5, store: {kind: mem, size: 32MiB}, faults: [cmd=verify10 status=busy]}
  - name: c
    luns: [{lun: 7, store: {kind: mem, size: 32MiB}}]
END
mkswap /dev/$one > mkswap.log
swapon /dev/$one
reload "all is as before"
echo "in use: $(grep "can't go" attach.log)"
swapoff /dev/$one

dd if=/dev/zero of=/dev/$two oflag=direct bs=1M count=8 2> dd.log &
writer=$!
n=$(errors $two)
await '[ $(errors $two) -gt $n ]'
reload "^reloaded"
grep "^reloaded" attach.log
wait $writer && echo "room came: written"
[ -e $gone ] || echo "LUN 1 has gone"
dd if=/dev/$zero of=/dev/null iflag=direct bs=1M count=1 2> dd.log
echo "log: $(dmesg | grep "$(readlink /sys/block/$zero/device | grep -o '[0-9:]*$').*Capacity data has changed")"
echo 1 > /sys/block/$zero/device/rescan
echo "size $(cat /sys/block/$zero/size)"
echo "came: $(block a 5) $(block c 7)"
[ -e /sys/kernel/config/target/core/user_0/b-3 ] || echo "target b has gone"
/opt/lunlab fault --socket /tmp/socket list

echo "$(cat lab.yaml)" | while IFS= read -r line; do
  case "$line" in *can_queue*) echo "    limits: {can_queue: 32}";; *) echo "$line";; esac
done > new.yaml
cat new.yaml > lab.yaml
reload "limits of target a"
grep "limits of target a" attach.log
detach
echo "all detached"
`

func wantReattached(t *testing.T, out string) {
	wantLines(t, out,
		`without LUN 0: sd[a-z]+`, `a/1 lost its power`,
		`in use: lab.yaml:1:1: LUN 1 of a can't go: /dev/sd[a-z]+ is in use \(mounted, or part of a volume\); free it`,
		`reloaded lab.yaml: 2 LUNs added, 7 removed, 2 kept`, `room came: written`, `LUN 1 has gone`,
		`log: .*Capacity data has changed.*`, `size 262144`, `came: sd[a-z]+ sd[a-z]+`, `target b has gone`,
		`a/5 +1 +0 +0 +0 +cmd=verify10 status=busy`,
		`lab.yaml:1:1: the limits of target a can't change while it is attached: its host was made with them; restart for that`,
		`all detached`)
}
