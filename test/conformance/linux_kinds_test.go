package conformance

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"lunlab/test/kernel"
)

// attachScript is what scripts share that attach LUNs as disks.
const attachScript = `
# disk names the disk that a LUN is.
disk() {
  for d in /sys/block/sd*; do
    case "$(readlink $d/device)" in *:$1) echo /dev/${d##*/}; return;; esac
  done
  return 1
}
# generic names the generic device of a disk.
generic() {
  for g in /sys/block/${1##*/}/device/scsi_generic/*; do echo /dev/${g##*/}; done
}
# step runs a command, and says what came of it.
step() {
  echo "== $1"
  shift
  r=0
  "$@" 2>&1 || r=$?
  echo "-> $r"
}
# attached waits until a LUN is a disk, and all is known of it.
attached() {
  await "d=\$(disk $1)"
  await "[ -b $d ] && [ -s /sys/block/${d##*/}/size ]"
}
`

// kindsScript runs in a guest: LUNs of all kinds attach, one without its medium
// too.
const kindsScript = attachScript + `
cat > lab.yaml <<END
iscsi: {listen: ["127.0.0.1:3260", {address: "127.0.0.1:3261", group: 2}]}
targets:
  - name: kinds
    iscsi: {access: [{initiator: "*:other", luns: [0]}, {initiator: "*"}]}
    alua: {explicit: true, groups: [{id: 5, portal_groups: [1], state: active-optimized}, {id: 6, portal_groups: [2]}]}
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
      - {lun: 13, thin: true, erase_time: 20s, store: {kind: mem, size: 16MiB}}
      - {lun: 14, erase_time: 20s, store: {kind: mem, size: 16MiB}}
      - {lun: 15, thin: true, soft_threshold: 180MiB, store: {kind: mem, size: 400MiB, limit: 200MiB}}
END
start
dmesg -C
iscsistart -i $base:guest -t $base:kinds -g 1 -a 127.0.0.1 -p 3260 -d 0
for lun in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do attached $lun; done
await '[ $(dmesg | grep -c "Attached SCSI") -ge 16 ]'
dmesg > log
# A medium that isn't there. As the disk goes, the kernel flushes it in vain.
d=$(disk 4)
sg_start --eject $(generic $d) # opening $d keeps the medium in
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
`

// complaint is what a kernel says of a disk that it isn't content with.
var complaint = regexp.MustCompile(`(?i)unimplemented|illegal request|mode sense failed|asking for cache data failed|assuming|rejected|sense key|hostbyte|i/o error|cdb:|incomplete|failed|unsupported|invalid`)

// TestLinuxKinds has a kernel attach LUNs of all kinds, and looks for what it
// says against them; then sg3_utils, file systems and util-linux use them.
func TestLinuxKinds(t *testing.T) {
	cfg := kernel.Config{Load: []string{"sg", "scsi_dh_alua", "ext4", "xfs"}}
	out := inGuest(t, kindsScript+sg3Script+fsScript, cfg, slices.Concat(sg3Programs, fsPrograms,
		[]string{"iscsistart", "ip", "dmesg", "readlink", "grep", "tr", "cmp", "dd", "head"})...)
	t.Run("attach", func(t *testing.T) { wantNoComplaint(t, out) })
	t.Run("sg3_utils", func(t *testing.T) { wantSteps(t, out, sg3Steps) })
	t.Run("file systems", func(t *testing.T) { wantSteps(t, out, fsSteps) })
}

// wantNoComplaint looks in the kernel's log, which a script printed, for complaints.
func wantNoComplaint(t *testing.T, out string) {
	t.Helper()
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

// A step is one that a script took, and the lines that it has to have printed.
// Its status has to be 0 if none of them is another.
type step struct {
	name  string
	lines []string
}

// steps are steps that just have to have gone well.
func steps(names ...string) (all []step) {
	for _, n := range names {
		all = append(all, step{name: n})
	}
	return all
}

// wantSteps checks what a script's steps printed.
func wantSteps(t *testing.T, out string, steps []step) {
	t.Helper()
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			_, printed, found := strings.Cut(out, "\n== "+s.name+"\n")
			printed, _, _ = strings.Cut(printed, "\n== ")
			if !found {
				t.Fatal("no such step in the output")
			}
			if !slices.ContainsFunc(s.lines, func(l string) bool { return strings.HasPrefix(l, "-> ") }) {
				wantLines(t, printed, "-> 0")
			}
			wantLines(t, printed, s.lines...)
		})
	}
}
