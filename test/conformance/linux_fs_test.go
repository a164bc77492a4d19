package conformance

import "slices"

// fsScript goes on in the guest after [sg3Script]: file systems on a thin LUN of
// limited memory, which has a log page that tells how much is taken, and what
// util-linux has for blocks and zones.
const fsScript = `
d=$(disk 15)
# used says how many MiB a LUN has taken.
used() { sg_logs --page=0xc $d; }
dd if=/dev/urandom of=file bs=1M count=24 2> /dev/null
mkdir -p /mnt
for type in ext4 xfs; do
  step mkfs.$type mkfs.$type -q $d
  step $type-mount mount -t $type $d /mnt
  step $type-write cp file /mnt/file
  step $type-unmount umount /mnt
  step $type-used used
  step $type-again mount -t $type $d /mnt
  step $type-read cmp file /mnt/file
  rm /mnt/file
  sync
  step $type-fstrim fstrim -v /mnt
  step $type-trimmed used
  step $type-end umount /mnt
  step blkdiscard-$type blkdiscard --force $d
  step blkdiscard-$type-used used
done
dd if=file of=$d bs=1M count=4 oflag=direct 2> /dev/null
step blkdiscard-z blkdiscard --force -z --length=1MiB --offset=1MiB $d
step blkdiscard-z-zero zero $d 2048 2048
dd if=file of=want bs=1M count=1 2> /dev/null
step blkdiscard-z-before holds $d 0 2048 want

step blkzone blkzone report -c 2 $zoned
step blkzone-open blkzone open -o 8192 -c 1 $zoned
step blkzone-opened blkzone report -o 8192 -c 1 $zoned
step blkzone-close blkzone close -o 8192 -c 1 $zoned
step blkzone-finish blkzone finish -o 8192 -c 1 $zoned
step blkzone-finished blkzone report -o 8192 -c 1 $zoned
step blkzone-reset blkzone reset -o 8192 -c 1 $zoned
step blkzone-is-reset blkzone report -o 8192 -c 1 $zoned
echo "== end of file systems"
`

var fsPrograms = []string{"mkfs.ext4", "mkfs.xfs", "mount", "umount", "fstrim", "blkdiscard", "blkzone", "cp", "rm", "sync"}

// fsSteps is what has to come of them. Of the file systems' space, 24 MiB are the
// file's, which trimming gives back; the rest are logs, of 64 MiB for xfs.
var fsSteps = slices.Concat(steps("mkfs.ext4", "ext4-mount", "ext4-write", "ext4-unmount", "ext4-again", "ext4-read", "ext4-fstrim", "ext4-end",
	"mkfs.xfs", "xfs-mount", "xfs-write", "xfs-unmount", "xfs-again", "xfs-read", "xfs-fstrim", "xfs-end",
	"blkdiscard-ext4", "blkdiscard-xfs", "blkdiscard-z", "blkdiscard-z-zero", "blkdiscard-z-before", "blkzone-open", "blkzone-close", "blkzone-finish", "blkzone-reset",
), []step{
	{"ext4-used", []string{` *Used LBA mapping threshold resource count: (3[0-9]|4[0-9])`}},
	{"ext4-trimmed", []string{` *Used LBA mapping threshold resource count: ([5-9]|1[0-9])`}},
	{"xfs-used", []string{` *Used LBA mapping threshold resource count: (8[89]|9[0-9])`}},
	{"xfs-trimmed", []string{` *Used LBA mapping threshold resource count: 6[4-9]`}},
	{"blkdiscard-ext4-used", []string{` *Used LBA mapping threshold resource count: 0`, ` *Available LBA mapping threshold resource count: 200`}},
	{"blkdiscard-xfs-used", []string{` *Used LBA mapping threshold resource count: 0`, ` *Available LBA mapping threshold resource count: 200`}},
	{"blkzone", []string{`.*start: 0x0+, len 0x0*2000,.*\[type: 1\(CONVENTIONAL\)\]`, `.*start: 0x0*2000, .* wptr 0x0+ .*zcond: 1\(em\) \[type: 2\(SEQ_WRITE_REQUIRED\)\]`}},
	{"blkzone-opened", []string{`.*zcond: 3\(oe\).*`}},
	{"blkzone-finished", []string{`.*zcond:14\(fu\).*`}},
	{"blkzone-is-reset", []string{`.* wptr 0x0+ .*zcond: 1\(em\).*`}},
})
