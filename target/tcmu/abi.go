package tcmu

// The kernel's interface, include/uapi/linux/target_core_user.h. Offsets and
// values stand here once, under the kernel's names. All integers are in the
// machine's byte order.

// struct tcmu_mailbox: the start of the mapping.
const (
	mbVersion  = 0  // version, u16
	mbFlags    = 2  // flags, u16
	mbCmdrOff  = 4  // cmdr_off, u32
	mbCmdrSize = 8  // cmdr_size, u32
	mbCmdHead  = 12 // cmd_head, u32: written by the kernel
	mbCmdTail  = 64 // cmd_tail, u32: written by us, on its own cache line
	mbSize     = 68

	mailboxVersion = 2 // TCMU_MAILBOX_VERSION
)

// Flags of the mailbox.
const (
	capOOOC    = 1 << 0 // TCMU_MAILBOX_FLAG_CAP_OOOC: completions in any order
	capReadLen = 1 << 1 // TCMU_MAILBOX_FLAG_CAP_READ_LEN
	capTMR     = 1 << 2 // TCMU_MAILBOX_FLAG_CAP_TMR
)

// struct tcmu_cmd_entry_hdr: the start of every ring entry.
const (
	hdrLenOp  = 0 // len_op, u32
	hdrCmdID  = 4 // cmd_id, u16
	hdrKflags = 6 // kflags, u8
	hdrUflags = 7 // uflags, u8
	hdrSize   = 8

	opMask  = 0x7 // TCMU_OP_MASK
	opAlign = 8   // TCMU_OP_ALIGN_SIZE
)

// enum tcmu_opcode.
const (
	opPad = 0 // TCMU_OP_PAD
	opCmd = 1 // TCMU_OP_CMD
	opTMR = 2 // TCMU_OP_TMR
)

// Flags that we set in uflags.
const (
	uflagUnknownOp = 1 << 0 // TCMU_UFLAG_UNKNOWN_OP
	uflagReadLen   = 1 << 1 // TCMU_UFLAG_READ_LEN
)

// struct tcmu_cmd_entry. The request's struct isn't packed, so that cdb_off is
// aligned to 8 behind the three counts.
const (
	reqIovCnt     = 8  // req.iov_cnt, u32
	reqIovBidiCnt = 12 // req.iov_bidi_cnt, u32
	reqIovDifCnt  = 16 // req.iov_dif_cnt, u32
	reqCdbOff     = 24 // req.cdb_off, u64: from the start of the mapping
	reqIov        = 48 // req.iov, struct iovec: base from the start of the mapping, length
	iovecSize     = 16

	rspStatus  = 8  // rsp.scsi_status, u8
	rspReadLen = 12 // rsp.read_len, u32
	rspSense   = 16 // rsp.sense_buffer

	senseSize = 96                   // TCMU_SENSE_BUFFERSIZE
	cmdSize   = rspSense + senseSize // sizeof(struct tcmu_cmd_entry)
)

// struct tcmu_tmr_entry.
const (
	tmrType   = 8  // tmr_type, u8
	tmrCmdCnt = 12 // cmd_cnt, u32
	tmrCmdIDs = 32 // cmd_ids, u16 each
)

// TMRType is a task management request, the TCMU_TMR_ values.
type TMRType uint8

const (
	TMRUnknown         TMRType = 0
	TMRAbortTask       TMRType = 1
	TMRAbortTaskSet    TMRType = 2
	TMRClearACA        TMRType = 3
	TMRClearTaskSet    TMRType = 4
	TMRLUNReset        TMRType = 5
	TMRTargetWarmReset TMRType = 6
	TMRTargetColdReset TMRType = 7

	// TMRLUNResetPRO is what the kernel makes of a PREEMPT AND ABORT that it
	// carried out itself.
	TMRLUNResetPRO TMRType = 128
)

// Generic netlink, family TCM-USER.
const (
	genlName    = "TCM-USER"
	genlGroup   = "config" // TCMU_MCGRP_CONFIG
	genlVersion = 2
)

// enum tcmu_genl_cmd.
const (
	genlAddedDevice        = 1 // TCMU_CMD_ADDED_DEVICE
	genlRemovedDevice      = 2 // TCMU_CMD_REMOVED_DEVICE
	genlReconfigDevice     = 3 // TCMU_CMD_RECONFIG_DEVICE
	genlAddedDeviceDone    = 4 // TCMU_CMD_ADDED_DEVICE_DONE
	genlRemovedDeviceDone  = 5 // TCMU_CMD_REMOVED_DEVICE_DONE
	genlReconfigDeviceDone = 6 // TCMU_CMD_RECONFIG_DEVICE_DONE
	genlSetFeatures        = 7 // TCMU_CMD_SET_FEATURES
)

// enum tcmu_genl_attr.
const (
	attrDevice           = 1 // TCMU_ATTR_DEVICE, string: the UIO name
	attrDevCfg           = 4 // TCMU_ATTR_DEV_CFG, string
	attrDevSize          = 5 // TCMU_ATTR_DEV_SIZE, u64
	attrWriteCache       = 6 // TCMU_ATTR_WRITECACHE, u8
	attrCmdStatus        = 7 // TCMU_ATTR_CMD_STATUS, s32
	attrDeviceID         = 8 // TCMU_ATTR_DEVICE_ID, u32
	attrSuppKernCmdReply = 9 // TCMU_ATTR_SUPP_KERN_CMD_REPLY, u8
)
