package conformance

import (
	"testing"

	"lunlab/test/kernel"
)

// ataScript runs in a guest: ATA drives behind a translation attach, and programs that
// speak ATA through it use them.
const ataScript = attachScript + `
cat > lab.yaml <<END
targets:
  - name: ata
    luns:
      - {lun: 0, thin: true, physical_block_size: 4096, serial: SN0001, naa: "5001405000000abc", form_factor: 2.5, ata: {model: LUNLAB SSD, firmware: FW-1.0}, store: {kind: mem, size: 64MiB}}
      - {lun: 1, block_size: 4096, rotation_rate: 7200, serial: SN0002, ata: {model: LUNLAB HDD, queue_depth: 1}, store: {kind: mem, size: 64MiB}}
END
start
dmesg -C
iscsistart -i $base:guest -t $base:ata -g 1 -a 127.0.0.1 -p 3260 -d 0
for lun in 0 1; do attached $lun; done
await '[ $(dmesg | grep -c "Attached SCSI") -ge 2 ]'
dmesg > log
ssd=$(disk 0)
hdd=$(disk 1)

step vpd sg_vpd -a $ssd
step identify sg_sat_identify $ssd
step gplog sg_sat_read_gplog --log=0x30 --page=0 --count=1 $ssd
step gplog-dma sg_sat_read_gplog --dma --log=0x00 --page=0 --count=1 $ssd
step phy_event sg_sat_phy_event $ssd
step set_features sg_sat_set_features --feature=0x05 --count=0x80 --ck_cond $ssd
step hdparm hdparm -I $ssd
step hdparm-hdd hdparm -I $hdd
step hdparm-apm hdparm -B $ssd
step hdparm-cache hdparm -W 0 $ssd
step hdparm-cached hdparm -W $ssd
step hdparm-power hdparm -C $hdd
step hdparm-standby hdparm -y $hdd
step hdparm-stands hdparm -C $hdd
step hdparm-time hdparm -S 12 $hdd
step hdparm-read hdparm --read-sector 0 $ssd
step hdparm-bad hdparm --yes-i-know-what-i-am-doing --make-bad-sector 4096 $ssd
step bad-read sg_dd if=$ssd of=/dev/null bs=512 skip=4096 count=8
step smart-defect smartctl -l defects $ssd
step hdparm-repair hdparm --yes-i-know-what-i-am-doing --repair-sector 4096 $ssd
sg_dd if=/dev/zero of=$ssd bs=512 seek=4096 count=8
step bad-healed sg_dd if=$ssd of=/dev/null bs=512 skip=4096 count=8
step security-set hdparm --user-master u --security-set-pass secret $ssd
step security-erase hdparm --user-master u --security-erase secret $ssd
step sanitize hdparm --yes-i-know-what-i-am-doing --sanitize-block-erase $ssd
await 'hdparm --sanitize-status $ssd | grep -q SD0'
step sanitize-done hdparm --sanitize-status $ssd
step smart-test smartctl -t short $ssd
await 'smartctl -l selftest $ssd | grep -q "Completed without error"'
step smart smartctl -x $ssd
step smart-hdd smartctl -x $hdd
step smart-off smartctl -s off $hdd
step smart-is-off smartctl -i $hdd
dd if=/dev/urandom of=$ssd bs=64k count=16 oflag=direct 2> /dev/null
step discard blkdiscard $ssd
step discarded cmp -n 1048576 $ssd /dev/zero
verify() {
  fio --name=w --filename=$1 --rw=randwrite --bsrange=4k-64k --size=16M --verify=crc32c --ioengine=libaio --direct=1 --iodepth=32 --minimal > /dev/null
}
step verify-ssd verify $ssd
step verify-hdd verify $hdd

# The same by the guest's own TCM.
/opt/lunlab attach -f lab.yaml --socket /tmp/attached > attach.log 2>&1 &
attached=$!
await 'grep -q "^attached" attach.log'
block() {
  set -- $(grep "^ata *$1 " attach.log)
  echo $3
}
ssd=$(block 0)
sg_turs -n 2 $ssd > /dev/null 2>&1 || true # LUNs have come since it did
step attached-smart smartctl -x $ssd
step attached-hdparm hdparm -I $ssd
step attached-power hdparm -y $(block 1)
step attached-verify verify $ssd
step attached-verify-hdd verify $(block 1)
kill -INT $attached
wait $attached
echo "== log"
cat log
echo "== end of log"
`

var ataSteps = append(steps("set_features", "hdparm-repair", "sanitize", "discard", "discarded", "verify-ssd", "verify-hdd", "attached-power", "attached-verify", "attached-verify-hdd"), []step{
	{"vpd", []string{
		` *0x5001405000000abc`, ` *vendor id: ATA *`, ` *Device signature indicates SATA transport`, ` *model: LUNLAB SSD *`, ` *firmware revision: FW-1.0 *`,
		` *Optimal transfer length granularity: 8 blocks`, ` *Nominal form factor: 2.5 inch`, ` *Unmap command supported \(LBPU\): 1`,
	}},
	{"identify", []string{` *10 +2020 2020 2020 2020 0000 0000 0000 4657.*`, ` *f8 +0000 0000 0000 0000 0000 0000 0000 ..a5.*`}},
	{"gplog", []string{` *00 +0001 0000 0000 8000 0008 0201 0403 0605.*`}},
	{"gplog-dma", []string{` *30 +0009 0000.*`}},
	{"phy_event", []string{` *Command failed and ICRC error bit set in Error register: 0`, ` *Signature device-to-host register FISes due to COMRESET: 0`}},
	{"hdparm", []string{
		`\tModel Number: +LUNLAB SSD *`, `\tQueue depth: 32`, `\t +\*\tWrite cache`, `\t +\*\tNCQ priority information`, `\t +\*\tData Set Management TRIM supported \(limit 8 blocks\)`,
		`\tAdvanced power management level: 128`, `\tnot\tenabled`, `Checksum: correct`,
	}},
	{"hdparm-hdd", []string{`\tLogical  Sector size: +4096 bytes`, `\tNominal Media Rotation Rate: 7200`}},
	{"hdparm-apm", []string{` APM_level\t= 128`}},
	{"hdparm-cache", []string{` write-caching =  0 \(off\)`}},
	{"hdparm-cached", []string{` write-caching =  0 \(off\)`}},
	{"hdparm-power", []string{` drive state is:  active/idle`}},
	{"hdparm-standby", nil},
	{"hdparm-stands", []string{` drive state is:  standby`}},
	{"hdparm-time", []string{` setting standby to 12 \(1 minute\)`}},
	{"hdparm-read", []string{`reading sector 0: succeeded`}},
	{"hdparm-bad", []string{`Corrupting sector 4096 .*: succeeded`}},
	{"bad-read", []string{`.*Input/output error`, `-> 99`}},
	{"smart-defect", []string{` +0 +4096 +0`, ` +7 +4103 +0`}}, // all of a physical sector
	{"bad-healed", []string{`8\+0 records out`}},
	{"security-set", nil},
	{"security-erase", nil},
	{"sanitize-done", []string{` *State: +SD0 Sanitize Idle`, ` *Last Sanitize Operation Completed Without Error`}},
	{"smart-test", []string{`Testing has begun.`}},
	{"smart", []string{
		`Device Model: +LUNLAB SSD`, `LU WWN Device Id: 5 001405 000000abc`, `ATA Version is: +ACS-4 published, ANSI INCITS 529-2018`, `SATA Version is: +SATA 3.2, 6.0 Gb/s \(current: 6.0 Gb/s\)`,
		`TRIM Command: +Available, deterministic, zeroed`, `APM level is: +128 .*`, `Write cache is: +Disabled`, `ATA Security is: +Disabled, NOT FROZEN \[SEC1\]`,
		`SMART overall-health self-assessment test result: PASSED`, `197 Current_Pending_Sector +-O--CK +100 +100 +000 +- +0`,
		`0x13 +GPL +R/O +1 +SATA NCQ Send and Receive log`, `# 1 +Short offline +Completed without error .*`,
		` *40 -- 51 00 00 00 00 00 00 10 00 40 00 +Error: UNC at LBA = 0x00001000 = 4096`, ` *60 00 08 00 00 00 00 00 00 10 00 40 00 .*READ FPDMA QUEUED`,
		`0x04 +0x008 +4 +[1-9][0-9]* +--- +Number of Reported Uncorrectable Errors`, `0x07 +0x008 +1 +0 +N-- +Percentage Used Endurance Indicator`,
		`0x000a +2 +0 +Device-to-host register FISes sent due to a COMRESET`, `-> 64`, // there are errors in its log
	}},
	{"smart-hdd", []string{`Sector Size: +4096 bytes logical/physical`, `Rotation Rate: +7200 rpm`, ` *4 Start_Stop_Count .* 2`, `0x03 +0x018 +4 +1 +--- +Head Load Events`, `No Errors Logged`}},
	{"attached-smart", []string{`Device Model: +LUNLAB SSD`, `SMART overall-health self-assessment test result: PASSED`, `No Errors Logged`}},
	{"attached-hdparm", []string{`\tModel Number: +LUNLAB SSD *`, `\tQueue depth: 32`, `Checksum: correct`}},
	{"smart-off", []string{`SMART Disabled.*`}},
	{"smart-is-off", []string{`SMART support is: Disabled`}},
}...)

// TestLinuxATA has a kernel attach ATA drives, and smartmontools, hdparm and sg3_utils
// look at them.
func TestLinuxATA(t *testing.T) {
	out := inGuest(t, ataScript, kernel.Config{Load: []string{"sg", "target_core_user", "tcm_loop"}},
		"sg_vpd", "sg_dd", "sg_turs", "sg_sat_identify", "sg_sat_read_gplog", "sg_sat_phy_event", "sg_sat_set_features", "hdparm", "smartctl", "blkdiscard", "fio",
		"iscsistart", "ip", "dmesg", "readlink", "grep", "tr", "cmp", "dd")
	t.Run("attach", func(t *testing.T) { wantNoComplaint(t, out) })
	t.Run("tools", func(t *testing.T) { wantSteps(t, out, ataSteps) })
}
