package conformance

// sg3Script goes on in the guest after [kindsScript]: sg3_utils' programs use LUNs
// that they fit.
const sg3Script = `
dd if=/dev/urandom of=ab bs=512 count=16 2> /dev/null
head -c 4096 ab > a
head -c 512 ab > a1
head -c 1024 ab > a2 # what COMPARE AND WRITE finds, and what it writes
dd if=a2 of=b1 bs=512 skip=1 2> /dev/null
thin=$(disk 0)
large=$(disk 1)
thick=$(disk 2)
zoned=$(disk 8)
through=$(disk 12)
erased=$(disk 13)
formatted=$(disk 14)
# mapped tells what of a LUN is mapped.
mapped() { sg_get_lba_status --lba=0 --maxlen=4096 $1; }
# holds compares blocks of a LUN with a file.
holds() {
  rm -f found
  sg_dd if=$1 skip=$2 of=found bs=512 count=$3 2> /dev/null
  cmp found $4
}
# zero compares blocks of a LUN with zeros.
zero() {
  dd if=/dev/zero of=zeros bs=512 count=$3 2> /dev/null
  holds $1 $2 $3 zeros
}

# What takes its time goes on meanwhile.
sg_dd if=a of=$erased bs=512 seek=64 count=8
step sanitize-block sg_sanitize --block --quick --early $erased
step sanitize-progress sg_requests $erased
step sanitize-refuses sg_verify -v --lba=0 --count=1 $erased
step format sg_format --format --quick --early --size=4096 $formatted
step format-progress sg_requests $formatted
step format-refuses sg_turs -v $formatted

step inq sg_inq $thin
step inq-zoned sg_inq $zoned
step inq-removable sg_inq $(disk 4)
step inq-protected sg_inq $(disk 5)
step vpd sg_vpd -a $thin
step vpd-large sg_vpd -a $large
step vpd-thick sg_vpd -a $thick
step vpd-zoned sg_vpd -a $zoned
step vpd-protected sg_vpd -a $(disk 7)
step vpd-streams sg_vpd -a $(disk 9)
step modes sg_modes -a $thin
step modes-large sg_modes -a $large
step modes-through sg_modes -a $through
step modes-read-only sg_modes -a $(disk 3)
step wr_mode sg_wr_mode -p 8 -c 8,12,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0 $thin
step wr_mode-changed sg_modes -p 8 $thin
step opcodes sg_opcodes $thin
step opcodes-one sg_opcodes -o 0x28 $thin
step opcodes-tmf sg_opcodes -t $thin
step opcodes-zoned sg_opcodes $zoned
step readcap sg_readcap $thin
step readcap-long sg_readcap --long $thin
step readcap-large sg_readcap --long $large
step readcap-protected-1 sg_readcap --long $(disk 5)
step readcap-protected-2 sg_readcap --long $(disk 6)
step readcap-protected-3 sg_readcap --long $(disk 7)
step readcap-null sg_readcap --long $(disk 10)
step luns sg_luns $thin
step luns-well-known sg_luns -s 1 $thin
step turs sg_turs -n 3 $thin

# What was written is counted.
step logs-reset sg_logs --page=0x19 --reset $through
sg_dd if=a of=$through bs=512 count=8 bpt=8
sg_dd if=a of=$through bs=512 seek=8 count=8 bpt=8
step logs sg_logs -a $through

step unmapped mapped $thin
sg_dd if=a of=$thin bs=512 seek=2048 count=8
step mapped mapped $thin
step mapped-32 sg_get_lba_status --32 --lba=2050 --maxlen=4096 $thin
step unmap sg_unmap --lba=2049 --num=6 --force $thin
step unmap-mapped mapped $thin
step unmap-zero zero $thin 2049 6
step unmap-all sg_unmap --lba=2048 --num=8 --force $thin

step write_same sg_write_same --lba=100 --num=1000 --in=a1 $thin
step write_same-first holds $thin 100 1 a1
step write_same-last holds $thin 1099 1 a1
step write_same-after zero $thin 1100 1
step write_same-unmap sg_write_same --16 --unmap --lba=100 --num=500 $thin
step write_same-ndob sg_write_same --16 --ndob --lba=700 --num=100 $thin
step write_same-mapped mapped $thin
step write_same-zero zero $thin 700 100

step compare_and_write sg_compare_and_write --in=a2 --lba=1099 --num=1 $thin
step compare_and_write-wrote holds $thin 1099 1 b1
step compare_and_write-again sg_compare_and_write --in=a2 --lba=1099 --num=1 $thin

step verify sg_verify --lba=0 --count=2000 $thin
step verify-bytes sg_verify --lba=1099 --count=1 --ebytchk=1 --ndo=512 --in=b1 $thin
step verify-miscompare sg_verify --16 --lba=1099 --count=1 --ebytchk=1 --ndo=512 --in=a1 $thin
step verify-beyond sg_verify -v --lba=1048576 --count=1 $thin

sg_dd if=a of=$thin bs=512 seek=4096 count=8
step xcopy sg_xcopy if=$(generic $thin) of=$(generic $through) bs=512 skip=4096 seek=300 count=8
step xcopy-copied holds $through 300 8 a
step copy_results sg_copy_results -p $(generic $thin)

step sanitize-overwrite sg_sanitize --overwrite --pattern=b1 --ipl=512 --quick --wait $through
step sanitize-overwritten holds $through 301 1 b1
step sanitize-crypto sg_sanitize --crypto --quick --wait $through
step sanitize-gone zero $through 300 8

step stpg sg_stpg --tp=5 --active $thin
step stpg-seen sg_rtpg --decode $thin
step stpg-standby sg_stpg --tp=5 --standby $thin
step stpg-refuses sg_turs -v $thin
step stpg-back sg_stpg --tp=5 --optimized $thin
step rtpg sg_rtpg --decode $thin
step rtpg-extended sg_rtpg --decode --extended $thin

step timestamp sg_timestamp --milliseconds=1700000000000 $thin
step timestamp-set sg_timestamp --origin $thin
printf mine | sg_ident --set $thin
step ident sg_ident --ascii $thin
step rwbuf sg_test_rwbuf --size=512 $thin
step senddiag sg_senddiag -t $thin
step senddiag-short sg_senddiag -s 1 $thin
step senddiag-logged sg_logs --page=0x10 $thin
step start-stop sg_start --stop $thin
step start-stopped sg_turs -v $thin
step start sg_start --start $thin
step start-idle sg_start --pc=2 $thin
step start-idling sg_requests $thin
step start-active sg_start --pc=1 $thin
step start-counted sg_logs --page=0xe $thin
step sync sg_sync $thin
step write_long sg_write_long --lba=4097 --cor_dis --wr_uncor $thin
step write_long-lost sg_verify -v --lba=4096 --count=8 $thin
sg_dd if=a of=$thin bs=512 seek=4096 count=8
step write_long-back holds $thin 4096 8 a
step prevent sg_prevent --prevent=1 $(generic $(disk 4))
step prevent-eject sg_start -v --eject $(generic $(disk 4))
step prevent-allow sg_prevent --allow $(generic $(disk 4))
step stream_ctl sg_stream_ctl --get $(disk 9)

# Another initiator, which has the thin LUN only.
iscsistart -i $base:other -t $base:kinds -g 2 -a 127.0.0.1 -p 3261 -d 0
others() {
  for d in /sys/block/sd*; do
    case "$(readlink $d/device)" in *:0) [ /dev/${d##*/} = $thin ] || echo /dev/${d##*/};; esac
  done
}
await 'other=$(others); [ -b "$other" ] && [ -s /sys/block/${other##*/}/size ]'
step persist-capabilities sg_persist -c $thin
step persist-register sg_persist --out --register --param-sark=0x123abc $thin
step persist-reserve sg_persist --out --reserve --param-rk=0x123abc --prout-type=1 $thin
step persist-register-other sg_persist --out --register --param-sark=0xdef $other
step persist-keys sg_persist -k $other
step persist-reservation sg_persist -r $other
step persist-status sg_persist -s $other
step persist-conflict sg_write_same --lba=0 --num=1 --in=a1 $other
step persist-preempt sg_persist --out --preempt --param-rk=0xdef --param-sark=0x123abc --prout-type=3 $other
step persist-preempted sg_turs -v $thin
step persist-keys-left sg_persist -k $thin
step persist-reservation-moved sg_persist -r $thin
step persist-conflict-now sg_verify --lba=0 --count=1 $thin
step persist-clear sg_persist --out --clear --param-rk=0xdef $other
step persist-cleared sg_turs $thin
step persist-keys-none sg_persist -k $thin

step rep_zones sg_rep_zones --num=3 $zoned
step zone-open sg_zone --open --zone=8192 $zoned
step zone-opened sg_rep_zones --start=8192 --num=1 $zoned
sg_dd if=a of=$zoned bs=512 seek=8192 count=8
step zone-close sg_zone --close --zone=8192 $zoned
step zone-closed sg_rep_zones --start=8192 --num=1 $zoned
step zone-finish sg_zone --finish --zone=8192 $zoned
step zone-finished sg_rep_zones --start=8192 --num=1 $zoned
step reset_wp sg_reset_wp --zone=8192 $zoned
step reset_wp-reset sg_rep_zones --start=8192 --num=1 $zoned

step reset sg_reset -d $(disk 9)
step reset-told sg_requests $(generic $(disk 9))

await 'sg_turs $erased > /dev/null 2>&1 && sg_turs $formatted > /dev/null 2>&1'
step sanitize-done zero $erased 64 8
step sanitize-unmapped mapped $erased
step format-done sg_readcap $formatted
echo 1 > /sys/block/${formatted##*/}/device/rescan
step format-kernel cat /sys/block/${formatted##*/}/queue/logical_block_size
echo "== end of sg3_utils"
`

var sg3Programs = []string{
	"sg_compare_and_write", "sg_copy_results", "sg_dd", "sg_format", "sg_get_lba_status", "sg_ident", "sg_inq", "sg_logs", "sg_luns", "sg_modes",
	"sg_opcodes", "sg_persist", "sg_prevent", "sg_readcap", "sg_rep_zones", "sg_requests", "sg_reset", "sg_reset_wp", "sg_rtpg", "sg_sanitize",
	"sg_senddiag", "sg_start", "sg_stpg", "sg_stream_ctl", "sg_sync", "sg_test_rwbuf", "sg_timestamp", "sg_turs", "sg_unmap", "sg_verify",
	"sg_vpd", "sg_wr_mode", "sg_write_long", "sg_write_same", "sg_xcopy", "sg_zone",
}

// sg3Steps is what the programs have to show of the LUNs.
var sg3Steps = []step{
	{"sanitize-block", nil},
	{"sanitize-progress", []string{`.*[Ss]anitize in progress`, ` *Progress indication: .*%`}},
	{"sanitize-refuses", []string{`.*Sense key: Not Ready`, `.*[Ss]anitize in progress`, `-> 2`}},
	{"format", []string{`Format unit has started`}},
	{"format-progress", []string{`.*[Ff]ormat in progress`, ` *Progress indication: .*%`}},
	{"format-refuses", []string{`.*Sense key: Not Ready`, `.*[Ff]ormat in progress`, `-> 2`}},

	{"inq", []string{` *Vendor identification: ACME *`, ` *Product identification: thinnest *`, ` *Product revision level: 7.5a *`,
		` *Unit serial number: serial-0001`, `.*TPGS=3 .*3PC=1 .*Protect=0 .*`, ` *PQual=0 .*RMB=0 .*`, `.*Peripheral device type: disk`}},
	{"inq-zoned", []string{`.*Peripheral device type: host managed zoned block`, ` *PQual=0 .*PDT=20 .*`}},
	{"inq-removable", []string{` *PQual=0 .*RMB=1 .*`}},
	{"inq-protected", []string{`.*Protect=1 .*`}},
	{"vpd", []string{` *0x5001405000000abc`, ` *Unit serial number: serial-0001`, ` *Target port group: 0x5`, ` *vendor id: ACME *`,
		` *Nominal rotation rate: 7200 rpm`, ` *Maximum unmap LBA count: [1-9].*`, ` *Maximum compare and write length: 255 blocks`,
		` *Unmap command supported \(LBPU\): 1`, ` *Write same \(16\) with unmap bit supported \(LBPWS\): 1`,
		` *Write same \(10\) with unmap bit supported \(LBPWS10\): 1`, ` *Logical block provisioning read zeros \(LBPRZ\): 1`,
		` *Provisioning type: 2 \(thin provisioned\)`, ` *Maximum transfer length: 16384 blocks`, ` *Optimal transfer length granularity: 8 blocks`}},
	{"vpd-large", []string{` *Maximum transfer length: 2048 blocks`, ` *Non-rotating medium .*`, ` *Provisioning type: 2 .*`}},
	{"vpd-thick", []string{` *Unmap command supported \(LBPU\): 0`, ` *Maximum unmap LBA count: 0 .*`, ` *Provisioning type: 0 .*`}},
	{"vpd-zoned", []string{` *URSWRZ: 1`, ` *Maximum number of open sequential write required zones: 4`}},
	{"vpd-protected", []string{`.* SPT=7 GRD_CHK=1 APP_CHK=1 REF_CHK=1`}},
	{"vpd-streams", []string{` *Maximum number of streams: 4`}},
	{"modes", []string{`>> Read-Write error recovery, .*`, `>> Disconnect-Reconnect.*`, `>> Caching, .*`, ` *00 +88 12 04 .*`, `>> Control, .*`,
		`>> Power condition, .*`, `>> Informational exceptions control, .*`, `.* WP=0, DpoFua=1, .*`, ` *00 +00 10 00 00 00 00 02 00 *`}},
	{"modes-large", []string{` *00 +00 02 00 00 00 00 10 00 *`}},
	{"modes-through", []string{` *00 +88 12 00 .*`}},
	{"modes-read-only", []string{`.* WP=1, .*`}},
	{"wr_mode", nil},
	{"wr_mode-changed", []string{` *00 +88 12 00 .*`}},
	{"opcodes", []string{`.*Get LBA status\(32\)`, `.*Persistent reserve in, read full status`, ` *04 +6 .*Format Unit`, ` *42 +10 .*Unmap`,
		` *48 +3 +10 .*Sanitize, cryptographic erase`, ` *89 +16 .*Compare and write`, ` *93 +16 .*Write same\(16\)`, `.*Set target port groups`}},
	{"opcodes-one", []string{` *Opcode=0x28`, ` *Usage data: 28 1a ff ff ff ff 3f ff ff 04 *`}},
	{"opcodes-tmf", []string{` *Abort task`, ` *Abort task set`, ` *Clear ACA`, ` *Clear task set`, ` *Logical unit reset`}}, // at iSCSIProtocolLevel 1
	{"opcodes-zoned", []string{`.*Report zones.*`, `.*Reset write pointer.*`, `.*Finish zone.*`}},
	{"readcap", []string{` *Last LBA=1048575 .*`, ` *Logical block length=512 bytes`}},
	{"readcap-long", []string{` *Logical block provisioning: lbpme=1, lbprz=1`, ` *Last LBA=1048575 .*`,
		` *Logical blocks per physical block exponent=3 .*`, ` *Protection: prot_en=0, .*`}},
	{"readcap-large", []string{` *Last LBA=131071 .*`, ` *Logical block length=4096 bytes`, ` *Logical blocks per physical block exponent=0.*`}},
	{"readcap-protected-1", []string{` *Protection: prot_en=1, p_type=0, .*`}},
	{"readcap-protected-2", []string{` *Protection: prot_en=1, p_type=1, .*`}},
	{"readcap-protected-3", []string{` *Protection: prot_en=1, p_type=2, .*`}},
	{"readcap-null", []string{` *Device size: 1099511627776 bytes, .*`}},
	{"luns", []string{`Lun list length = 128 .*`, ` *0000000000000000`, ` *000f000000000000`}},
	{"luns-well-known", []string{` *c101000000000000`}},
	{"turs", []string{`Completed 3 Test Unit Ready commands with 0 errors`}},

	{"logs-reset", nil},
	{"logs", []string{` *number of write commands = 2`, ` *number of logical blocks received = 16`, `Write error counter page .*`,
		`Read error counter page .*`, `Verify error counter page .*`, `Start-stop cycle counter page .*`, `Self-test results page .*`,
		`Background scan results page .*`, ` *IE asc = 0x0, ascq = 0x0`, ` *Total bytes processed = 8192`, `Temperature page .*`}},

	{"unmapped", []string{`\[1\] LBA: 0x0+  blocks: +1048576  deallocated`}},
	{"mapped", []string{`\[1\] LBA: 0x0+  blocks: +2048  deallocated`, `\[2\] LBA: 0x0+800  blocks: +8  mapped.*`, `\[3\] LBA: 0x0+808  blocks: +1046520  deallocated`}},
	{"mapped-32", []string{`\[1\] LBA: 0x0+802  blocks: +6  mapped.*`, `\[2\] .*  deallocated`}},
	{"unmap", nil},
	{"unmap-mapped", []string{`\[2\] LBA: 0x0+800  blocks: +1  mapped.*`, `\[3\] LBA: 0x0+801  blocks: +6  deallocated`, `\[4\] LBA: 0x0+807  blocks: +1  mapped.*`}},
	{"unmap-zero", nil},
	{"unmap-all", nil},

	{"write_same", nil},
	{"write_same-first", nil},
	{"write_same-last", nil},
	{"write_same-after", nil},
	{"write_same-unmap", nil},
	{"write_same-ndob", nil},
	{"write_same-mapped", []string{`\[1\] LBA: 0x0+  blocks: +600  deallocated`, `\[2\] LBA: 0x0+258  blocks: +500  mapped.*`, `\[3\] LBA: 0x0+44c .*  deallocated`}},
	{"write_same-zero", nil},

	{"compare_and_write", nil},
	{"compare_and_write-wrote", nil},
	{"compare_and_write-again", []string{`Miscompare at byte offset: 0 .*`, `-> 14`}},

	{"verify", nil},
	{"verify-bytes", nil},
	{"verify-miscompare", []string{`VERIFY\(16\) MISCOMPARE: started at LBA 0x44b`, `-> 14`}},
	{"verify-beyond", []string{`.*Logical block address out of range`, `-> [1-9][0-9]*`}},

	{"xcopy", []string{`sg_xcopy: 8 blocks, 1 command`}},
	{"xcopy-copied", nil},
	{"copy_results", []string{` *Maximum target descriptor count: 16`, ` *Target descriptor 0xe4: .*`, ` *Segment descriptor 0x02: .*`}},

	{"sanitize-overwrite", nil},
	{"sanitize-overwritten", nil},
	{"sanitize-crypto", nil},
	{"sanitize-gone", nil},

	{"stpg", nil},
	{"stpg-seen", []string{` *target port group id : 0x5 .*`, ` *target port group asymmetric access state : 0x01 \(active/non optimized\)`,
		` *status code : 0x01 \(target port asym. state changed by SET TARGET PORT GROUPS command\)`}},
	{"stpg-standby", nil},
	{"stpg-refuses", []string{`.*target port in standby state`, `-> 2`}},
	{"stpg-back", nil},
	{"rtpg", []string{` *target port group asymmetric access state : 0x00 \(active/optimized\)`, ` *target port count : 0*1`, ` *0x01`}},
	{"rtpg-extended", []string{` *Implicit transition time: 0`}},

	{"timestamp", nil},
	{"timestamp-set", []string{`.*SET TIMESTAMP.*`, `1700000[0-9]{6}`}},
	{"ident", []string{`mine`}},
	{"rwbuf", []string{`Success`}},
	{"senddiag", []string{`Default self-test returned GOOD status`}},
	{"senddiag-short", nil},
	{"senddiag-logged", []string{` *self-test code: background short \[1\]`, ` *self-test result: completed without error \[0\]`}},
	{"start-stop", nil},
	{"start-stopped", []string{`.*initializing command required`, `-> 2`}},
	{"start", nil},
	{"start-idle", nil},
	{"start-idling", []string{`.*Idle condition activated by command`}},
	{"start-active", nil},
	{"start-counted", []string{` *Accumulated start-stop cycles = 1`}},
	{"sync", nil},
	{"write_long", nil},
	{"write_long-lost", []string{`.*Sense key: Medium Error`, `-> 18`}},
	{"write_long-back", nil},
	{"prevent", nil},
	{"prevent-eject", []string{`.*Medium removal prevented`, `-> 5`}},
	{"prevent-allow", nil},
	{"stream_ctl", []string{`Number of open streams: 4`}},

	{"persist-capabilities", []string{` *Specify Initiator Ports Capable\(SIP_C\): 1`, ` *Persist Through Power Loss Capable\(PTPL_C\): 0`,
		` *Exclusive Access, all registrants: 1`}},
	{"persist-register", nil},
	{"persist-reserve", nil},
	{"persist-register-other", nil},
	{"persist-keys", []string{`.* 2 registered reservation keys follow:`, ` *0x123abc`, ` *0xdef`}},
	{"persist-reservation", []string{` *Key=0x123abc`, ` *scope: LU_SCOPE,  type: Write Exclusive`}},
	{"persist-status", []string{` *Key=0xdef`, ` *<< Reservation holder >>`, `.*iqn\.2026-01\.example\.lunlab:other,i,0x.*`}},
	{"persist-conflict", []string{`.*[Rr]eservation conflict.*`, `-> 24`}},
	{"persist-preempt", nil},
	{"persist-preempted", []string{`.*Registrations preempted`, `-> 6`}},
	{"persist-keys-left", []string{`.* 1 registered reservation key follows:`, ` *0xdef`}},
	{"persist-reservation-moved", []string{` *Key=0xdef`, ` *scope: LU_SCOPE,  type: Exclusive Access`}},
	{"persist-conflict-now", []string{`.*[Rr]eservation conflict.*`, `-> 24`}},
	{"persist-clear", nil},
	{"persist-cleared", nil},
	{"persist-keys-none", []string{`.*there are NO registered reservation keys`}},

	{"rep_zones", []string{` *Zone type: Conventional`, ` *Zone type: Sequential write required`, ` *Zone start LBA: 0x4000`, ` *Zone condition: Empty`, ` *Zone Length: 0x2000`}},
	{"zone-open", nil},
	{"zone-opened", []string{` *Zone condition: Explicitly opened`, ` *Zone start LBA: 0x2000`}},
	{"zone-close", nil},
	{"zone-closed", []string{` *Zone condition: Closed`, ` *Write pointer LBA: 0x2008`}},
	{"zone-finish", nil},
	{"zone-finished", []string{` *Zone condition: Full`}},
	{"reset_wp", nil},
	{"reset_wp-reset", []string{` *Zone condition: Empty`, ` *Write pointer LBA: 0x2000`}},

	{"reset", nil},
	{"reset-told", []string{`.*[Rr]eset.* occurred`}},

	{"sanitize-done", nil},
	{"sanitize-unmapped", []string{`\[1\] LBA: 0x0+  blocks: +32768  deallocated`}},
	{"format-done", []string{` *Last LBA=4095 .*`, ` *Logical block length=4096 bytes`}},
	{"format-kernel", []string{`4096`}},
}
