package pdu

// NOPOut is the NOP-Out (RFC 7143 11.18).
type NOPOut struct {
	Immediate         bool
	DataSegmentLength int
	LUN               LUN
	InitiatorTaskTag  uint32
	TargetTransferTag uint32
	CmdSN             uint32
	ExpStatSN         uint32
}

func (p *NOPOut) Decode(b []byte) error {
	if err := start(b, OpNOPOut); err != nil {
		return err
	}
	*p = NOPOut{immediate(b), DataSegmentLength(b), lunAt(b), u32(b[16:]), u32(b[20:]), u32(b[24:]), u32(b[28:])}
	// An answer to nothing that asks for none, or one that has to be immediate.
	if !final(b) || p.InitiatorTaskTag == NoTag && !p.Immediate {
		return ErrField
	}
	return nil
}

func (p *NOPOut) Encode(b []byte) {
	begin(b, OpNOPOut, p.Immediate, 0x80, p.DataSegmentLength)
	copy(b[8:], p.LUN[:])
	put32(b[16:], p.InitiatorTaskTag)
	put32(b[20:], p.TargetTransferTag)
	put32(b[24:], p.CmdSN)
	put32(b[28:], p.ExpStatSN)
}

// SCSICommand is the SCSI Command (RFC 7143 11.3).
type SCSICommand struct {
	Immediate         bool
	Final             bool
	Read, Write       bool
	Attr              uint8
	Priority          uint8 // RFC 7144 4.1, at iSCSIProtocolLevel 2 and above
	DataSegmentLength int
	LUN               LUN
	InitiatorTaskTag  uint32

	// ExpectedDataTransferLength is in bytes: of data-out if Write is set, else
	// of data-in.
	ExpectedDataTransferLength uint32
	CmdSN                      uint32
	ExpStatSN                  uint32
	CDB                        [16]byte
}

// Task attributes in a SCSI Command (RFC 7143 11.3.1).
const (
	AttrUntagged    = 0
	AttrSimple      = 1
	AttrOrdered     = 2
	AttrHeadOfQueue = 3
	AttrACA         = 4
)

func (p *SCSICommand) Decode(b []byte) error {
	if err := start(b, OpSCSICommand); err != nil {
		return err
	}
	p.Immediate = immediate(b)
	p.Final = final(b)
	p.Read = b[1]&0x40 != 0
	p.Write = b[1]&0x20 != 0
	p.Attr = b[1] & 7
	p.Priority = b[2] >> 4
	p.DataSegmentLength = DataSegmentLength(b)
	p.LUN = lunAt(b)
	p.InitiatorTaskTag = u32(b[16:])
	p.ExpectedDataTransferLength = u32(b[20:])
	p.CmdSN = u32(b[24:])
	p.ExpStatSN = u32(b[28:])
	p.CDB = [16]byte(b[32:])
	switch {
	case p.InitiatorTaskTag == NoTag, p.Attr > AttrACA:
		return ErrField
	case !p.Write && (!p.Final || p.DataSegmentLength > 0):
		// Without W there is no data to follow (11.3.1).
		return ErrField
	}
	return nil
}

func (p *SCSICommand) Encode(b []byte) {
	begin(b, OpSCSICommand, p.Immediate, flag(p.Final, 0x80)|flag(p.Read, 0x40)|flag(p.Write, 0x20)|p.Attr&7, p.DataSegmentLength)
	b[2] = p.Priority << 4
	copy(b[8:], p.LUN[:])
	put32(b[16:], p.InitiatorTaskTag)
	put32(b[20:], p.ExpectedDataTransferLength)
	put32(b[24:], p.CmdSN)
	put32(b[28:], p.ExpStatSN)
	copy(b[32:], p.CDB[:])
}

// Function is a task management function (RFC 7143 11.5.1, RFC 7144 6).
type Function uint8

const (
	AbortTask        Function = 1
	AbortTaskSet     Function = 2
	ClearACA         Function = 3
	ClearTaskSet     Function = 4
	LogicalUnitReset Function = 5
	TargetWarmReset  Function = 6
	TargetColdReset  Function = 7
	TaskReassign     Function = 8
	QueryTask        Function = 9
	QueryTaskSet     Function = 10
	ITNexusReset     Function = 11
	QueryAsyncEvent  Function = 12
)

// TaskMgmtRequest is the Task Management Function Request (RFC 7143 11.5).
type TaskMgmtRequest struct {
	Immediate         bool
	Function          Function
	DataSegmentLength int
	LUN               LUN
	InitiatorTaskTag  uint32
	ReferencedTaskTag uint32
	CmdSN             uint32
	ExpStatSN         uint32
	RefCmdSN          uint32
	ExpDataSN         uint32
}

func (p *TaskMgmtRequest) Decode(b []byte) error {
	if err := start(b, OpTaskMgmtRequest); err != nil {
		return err
	}
	*p = TaskMgmtRequest{
		immediate(b), Function(b[1] & 0x7f), DataSegmentLength(b), lunAt(b),
		u32(b[16:]), u32(b[20:]), u32(b[24:]), u32(b[28:]), u32(b[32:]), u32(b[36:]),
	}
	if !final(b) || p.InitiatorTaskTag == NoTag || p.DataSegmentLength != 0 {
		return ErrField
	}
	return nil
}

func (p *TaskMgmtRequest) Encode(b []byte) {
	begin(b, OpTaskMgmtRequest, p.Immediate, 0x80|byte(p.Function)&0x7f, p.DataSegmentLength)
	copy(b[8:], p.LUN[:])
	put32(b[16:], p.InitiatorTaskTag)
	put32(b[20:], p.ReferencedTaskTag)
	put32(b[24:], p.CmdSN)
	put32(b[28:], p.ExpStatSN)
	put32(b[32:], p.RefCmdSN)
	put32(b[36:], p.ExpDataSN)
}

// LoginRequest is the Login Request (RFC 7143 11.12).
type LoginRequest struct {
	Transit           bool
	Continue          bool
	CSG, NSG          uint8
	VersionMax        uint8
	VersionMin        uint8
	DataSegmentLength int
	ISID              [6]byte
	TSIH              uint16
	InitiatorTaskTag  uint32
	CID               uint16
	CmdSN             uint32
	ExpStatSN         uint32
}

// Login stages (RFC 7143 11.12.3).
const (
	StageSecurity    = 0
	StageOperational = 1
	StageFullFeature = 3
)

func (p *LoginRequest) Decode(b []byte) error {
	if err := start(b, OpLoginRequest); err != nil {
		return err
	}
	*p = LoginRequest{
		final(b), b[1]&0x40 != 0, b[1] >> 2 & 3, b[1] & 3, b[2], b[3], DataSegmentLength(b),
		isid(b), u16(b[14:]), u32(b[16:]), u16(b[20:]), u32(b[24:]), u32(b[28:]),
	}
	switch {
	case !immediate(b), p.Transit && p.Continue,
		p.CSG > StageOperational,
		p.Transit && (p.NSG <= p.CSG || p.NSG == 2):
		return ErrField
	}
	return nil
}

func (p *LoginRequest) Encode(b []byte) {
	begin(b, OpLoginRequest, true, flag(p.Transit, 0x80)|flag(p.Continue, 0x40)|p.CSG&3<<2|p.NSG&3, p.DataSegmentLength)
	b[2], b[3] = p.VersionMax, p.VersionMin
	copy(b[8:], p.ISID[:])
	put16(b[14:], p.TSIH)
	put32(b[16:], p.InitiatorTaskTag)
	put16(b[20:], p.CID)
	put32(b[24:], p.CmdSN)
	put32(b[28:], p.ExpStatSN)
}

// TextRequest is the Text Request (RFC 7143 11.10).
type TextRequest struct {
	Immediate         bool
	Final             bool
	Continue          bool
	DataSegmentLength int
	LUN               LUN
	InitiatorTaskTag  uint32
	TargetTransferTag uint32
	CmdSN             uint32
	ExpStatSN         uint32
}

func (p *TextRequest) Decode(b []byte) error {
	if err := start(b, OpTextRequest); err != nil {
		return err
	}
	*p = TextRequest{
		immediate(b), final(b), b[1]&0x40 != 0, DataSegmentLength(b), lunAt(b),
		u32(b[16:]), u32(b[20:]), u32(b[24:]), u32(b[28:]),
	}
	if p.InitiatorTaskTag == NoTag || p.Final && p.Continue {
		return ErrField
	}
	return nil
}

func (p *TextRequest) Encode(b []byte) {
	begin(b, OpTextRequest, p.Immediate, flag(p.Final, 0x80)|flag(p.Continue, 0x40), p.DataSegmentLength)
	copy(b[8:], p.LUN[:])
	put32(b[16:], p.InitiatorTaskTag)
	put32(b[20:], p.TargetTransferTag)
	put32(b[24:], p.CmdSN)
	put32(b[28:], p.ExpStatSN)
}

// DataOut is the SCSI Data-Out (RFC 7143 11.7).
type DataOut struct {
	Final             bool
	DataSegmentLength int
	LUN               LUN
	InitiatorTaskTag  uint32

	// TargetTransferTag is that of the R2T which asked for the data, NoTag if
	// none did.
	TargetTransferTag uint32
	ExpStatSN         uint32
	DataSN            uint32
	BufferOffset      uint32
}

func (p *DataOut) Decode(b []byte) error {
	if err := start(b, OpDataOut); err != nil {
		return err
	}
	*p = DataOut{
		final(b), DataSegmentLength(b), lunAt(b), u32(b[16:]), u32(b[20:]), u32(b[28:]), u32(b[36:]), u32(b[40:]),
	}
	if immediate(b) || p.InitiatorTaskTag == NoTag {
		return ErrField
	}
	return nil
}

func (p *DataOut) Encode(b []byte) {
	begin(b, OpDataOut, false, flag(p.Final, 0x80), p.DataSegmentLength)
	copy(b[8:], p.LUN[:])
	put32(b[16:], p.InitiatorTaskTag)
	put32(b[20:], p.TargetTransferTag)
	put32(b[28:], p.ExpStatSN)
	put32(b[36:], p.DataSN)
	put32(b[40:], p.BufferOffset)
}

// LogoutReason is what a Logout Request asks for (RFC 7143 11.14.1).
type LogoutReason uint8

const (
	CloseSession      LogoutReason = 0
	CloseConnection   LogoutReason = 1
	RemoveForRecovery LogoutReason = 2
)

// LogoutRequest is the Logout Request (RFC 7143 11.14).
type LogoutRequest struct {
	Immediate         bool
	ReasonCode        LogoutReason
	DataSegmentLength int
	InitiatorTaskTag  uint32
	CID               uint16
	CmdSN             uint32
	ExpStatSN         uint32
}

func (p *LogoutRequest) Decode(b []byte) error {
	if err := start(b, OpLogoutRequest); err != nil {
		return err
	}
	*p = LogoutRequest{
		immediate(b), LogoutReason(b[1] & 0x7f), DataSegmentLength(b),
		u32(b[16:]), u16(b[20:]), u32(b[24:]), u32(b[28:]),
	}
	if !final(b) || p.ReasonCode > RemoveForRecovery || p.InitiatorTaskTag == NoTag || p.DataSegmentLength != 0 {
		return ErrField
	}
	return nil
}

func (p *LogoutRequest) Encode(b []byte) {
	begin(b, OpLogoutRequest, p.Immediate, 0x80|byte(p.ReasonCode), p.DataSegmentLength)
	put32(b[16:], p.InitiatorTaskTag)
	put16(b[20:], p.CID)
	put32(b[24:], p.CmdSN)
	put32(b[28:], p.ExpStatSN)
}

// SNACKType is what a SNACK Request is for (RFC 7143 11.16.1).
type SNACKType uint8

const (
	SNACKData    SNACKType = 0 // Data-In or R2T
	SNACKStatus  SNACKType = 1
	SNACKDataACK SNACKType = 2
	SNACKRData   SNACKType = 3
)

// SNACKRequest is the SNACK Request (RFC 7143 11.16).
type SNACKRequest struct {
	Type              SNACKType
	DataSegmentLength int
	LUN               LUN
	InitiatorTaskTag  uint32

	// TargetTransferTag is the SNACK tag in an R-Data SNACK.
	TargetTransferTag uint32
	ExpStatSN         uint32
	BegRun            uint32

	// RunLength counts PDUs; 0 means all from BegRun on.
	RunLength uint32
}

func (p *SNACKRequest) Decode(b []byte) error {
	if err := start(b, OpSNACKRequest); err != nil {
		return err
	}
	*p = SNACKRequest{
		SNACKType(b[1] & 0x0f), DataSegmentLength(b), lunAt(b),
		u32(b[16:]), u32(b[20:]), u32(b[28:]), u32(b[40:]), u32(b[44:]),
	}
	if !final(b) || immediate(b) || p.Type > SNACKRData || p.DataSegmentLength != 0 {
		return ErrField
	}
	return nil
}

func (p *SNACKRequest) Encode(b []byte) {
	begin(b, OpSNACKRequest, false, 0x80|byte(p.Type)&0x0f, p.DataSegmentLength)
	copy(b[8:], p.LUN[:])
	put32(b[16:], p.InitiatorTaskTag)
	put32(b[20:], p.TargetTransferTag)
	put32(b[28:], p.ExpStatSN)
	put32(b[40:], p.BegRun)
	put32(b[44:], p.RunLength)
}
