package conformance

import (
	"regexp"
	"strings"
	"testing"

	"lunlab/test/kernel"
)

// kindsScript runs in a guest: LUNs of all kinds attach, one without its medium
// too, and sg3_utils' commands show what one is.
const kindsScript = `
cat > lab.yaml <<END
targets:
  - name: kinds
    alua: {explicit: true, groups: [{id: 5, portal_groups: [1], state: active-optimized}]}
    luns:
      - {lun: 0, thin: true, vendor: ACME, product: thinnest, revision: "7.5a", serial: serial-0001, naa: "5001405000000abc", physical_block_size: 4096, rotation_rate: 7200, store: {kind: mem, size: 512MiB}}
      - {lun: 1, thin: true, block_size: 4096, store: {kind: mem, size: 512MiB}}
      - {lun: 2, store: {kind: mem, size: 64MiB}}
      - {lun: 3, read_only: true, store: {kind: mem, size: 64MiB}}
      - {lun: 4, removable: true, store: {kind: mem, size: 64MiB}}
      - {lun: 5, protection: 1, store: {kind: mem, size: 64MiB}}
      - {lun: 6, protection: 2, store: {kind: mem, size: 64MiB}}
      - {lun: 7, protection: 3, store: {kind: mem, size: 64MiB}}
      - {lun: 8, zones: {size: 4MiB, conventional: 1, max_open: 4}, store: {kind: mem, size: 64MiB}}
      - {lun: 9, streams: 4, store: {kind: mem, size: 64MiB}}
      - {lun: 10, store: {kind: "null", size: 1TiB}}
      - {lun: 11, store: {kind: mem, size: 512}}
      - {lun: 12, write_cache: false, lbprz: false, thin: true, store: {kind: mem, size: 64MiB}}
END
start
dmesg -C
iscsistart -i $base:guest -t $base:kinds -g 1 -a 127.0.0.1 -p 3260 -d 0
# disk names the disk that a LUN is.
disk() {
  for d in /sys/block/sd*; do
    case "$(readlink $d/device)" in *:$1) echo /dev/${d##*/}; return;; esac
  done
  return 1
}
# attached waits until a LUN is a disk, and all is known of it.
attached() {
  await "d=\$(disk $1)"
  await "[ -b $d ] && [ -s /sys/block/${d##*/}/size ]"
}
for lun in 0 1 2 3 4 5 6 7 8 9 10 11 12; do attached $lun; done
await '[ $(dmesg | grep -c "Attached SCSI") -ge 13 ]'
dmesg > log
# A medium that isn't there. As the disk goes, the kernel flushes it in vain.
d=$(disk 4)
for g in /sys/block/${d##*/}/device/scsi_generic/*; do sg_start --eject /dev/${g##*/}; done # opening $d keeps the medium in
h=$(readlink /sys/block/${d##*/}/device)
echo 1 > /sys/block/${d##*/}/device/delete
dmesg -C
set -- $(echo ${h##*/} | tr : ' ')
echo "$2 $3 $4" > /sys/class/scsi_host/host$1/scan
await '[ $(dmesg | grep -c "Attached SCSI") -ge 1 ]'
attached 4
echo "== log"
cat log
dmesg
echo "== end of log"
d=$(disk 0)
echo "== thin"
sg_inq $d
sg_vpd -a $d
sg_readcap --long $d
sg_opcodes $d
sg_rtpg --decode $d
sg_get_lba_status --lba=0 $d
echo "== end"
`

// complaint is what a kernel says of a disk that it isn't content with.
var complaint = regexp.MustCompile(`(?i)unimplemented|illegal request|mode sense failed|asking for cache data failed|assuming|rejected|sense key|hostbyte|i/o error|cdb:|incomplete|failed|unsupported|invalid`)

// TestLinuxKinds has a kernel attach LUNs of all kinds, and looks for what it
// says against them; then sg3_utils show what was configured.
func TestLinuxKinds(t *testing.T) {
	out := inGuest(t, kindsScript, kernel.Config{Load: []string{"sg", "scsi_dh_alua"}},
		"iscsistart", "ip", "dmesg", "readlink", "grep", "tr", "sg_start", "sg_inq", "sg_vpd", "sg_readcap", "sg_opcodes", "sg_rtpg", "sg_get_lba_status")
	wantLines(t, out,
		` *Vendor identification: ACME *`, ` *Product identification: thinnest *`, ` *Product revision level: 7.5a *`,
		` *Unit serial number: serial-0001`, ` *0x5001405000000abc`, `.*TPGS=3 .*`,
		` *target port group id : 0x5 .*`, ` *target port group asymmetric access state : 0x00 \(active/optimized\)`,
		`.*Get LBA status\(32\)`, `.*Persistent reserve in, read full status`,
		`\[1\] LBA: 0x0+  blocks: +1048576  deallocated`)
	_, log, found := strings.Cut(out, "== log\n")
	log, _, _ = strings.Cut(log, "== end of log\n")
	if !found || !strings.Contains(log, "Attached SCSI") {
		t.Error("the kernel's log isn't there")
	}
	for line := range strings.Lines(log) {
		if complaint.MatchString(line) {
			t.Errorf("the kernel says: %s", line)
		}
	}
}
