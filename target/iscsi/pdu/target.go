package pdu

// SN is the numbering that a target's PDUs carry (RFC 7143 4.2.2).
type SN struct {
	StatSN, ExpCmdSN, MaxCmdSN uint32
}

func (s *SN) decode(b []byte) {
	s.StatSN, s.ExpCmdSN, s.MaxCmdSN = u32(b[24:]), u32(b[28:]), u32(b[32:])
}

func (s *SN) encode(b []byte) {
	put32(b[24:], s.StatSN)
	put32(b[28:], s.ExpCmdSN)
	put32(b[32:], s.MaxCmdSN)
}

// NOPIn is the NOP-In (RFC 7143 11.19).
type NOPIn struct {
	DataSegmentLength int
	LUN               LUN
	InitiatorTaskTag  uint32
	TargetTransferTag uint32
	SN                SN
}

func (p *NOPIn) Decode(b []byte) error {
	if err := start(b, OpNOPIn); err != nil {
		return err
	}
	p.DataSegmentLength, p.LUN = DataSegmentLength(b), lunAt(b)
	p.InitiatorTaskTag, p.TargetTransferTag = u32(b[16:]), u32(b[20:])
	p.SN.decode(b)
	return nil
}

func (p *NOPIn) Encode(b []byte) {
	begin(b, OpNOPIn, false, 0x80, p.DataSegmentLength)
	copy(b[8:], p.LUN[:])
	put32(b[16:], p.InitiatorTaskTag)
	put32(b[20:], p.TargetTransferTag)
	p.SN.encode(b)
}

// Residual flags of SCSI Response and Data-In (RFC 7143 11.4.1), in place.
const (
	BidiOverflow  = 0x10
	BidiUnderflow = 0x08
	Overflow      = 0x04
	Underflow     = 0x02
)

// SCSIResponse is the SCSI Response (RFC 7143 11.4).
type SCSIResponse struct {
	// Residual holds BidiOverflow, BidiUnderflow, Overflow and Underflow.
	Residual              uint8
	Response              uint8 // 0: completed at the target
	Status                uint8
	DataSegmentLength     int
	InitiatorTaskTag      uint32
	SNACKTag              uint32
	SN                    SN
	ExpDataSN             uint32
	BidiReadResidualCount uint32
	ResidualCount         uint32
}

func (p *SCSIResponse) Decode(b []byte) error {
	if err := start(b, OpSCSIResponse); err != nil {
		return err
	}
	p.Residual, p.Response, p.Status = b[1]&0x1e, b[2], b[3]
	p.DataSegmentLength = DataSegmentLength(b)
	p.InitiatorTaskTag, p.SNACKTag = u32(b[16:]), u32(b[20:])
	p.SN.decode(b)
	p.ExpDataSN, p.BidiReadResidualCount, p.ResidualCount = u32(b[36:]), u32(b[40:]), u32(b[44:])
	return nil
}

func (p *SCSIResponse) Encode(b []byte) {
	begin(b, OpSCSIResponse, false, 0x80|p.Residual&0x1e, p.DataSegmentLength)
	b[2], b[3] = p.Response, p.Status
	put32(b[16:], p.InitiatorTaskTag)
	put32(b[20:], p.SNACKTag)
	p.SN.encode(b)
	put32(b[36:], p.ExpDataSN)
	put32(b[40:], p.BidiReadResidualCount)
	put32(b[44:], p.ResidualCount)
}

// TaskMgmtResponse is the Task Management Function Response (RFC 7143 11.6).
type TaskMgmtResponse struct {
	Response          uint8
	Additional        [3]byte // Additional Response Information (RFC 7144 5.2)
	DataSegmentLength int
	InitiatorTaskTag  uint32
	SN                SN
}

// Responses to a task management function (RFC 7143 11.6.1).
const (
	FunctionComplete     = 0
	TaskDoesNotExist     = 1
	LUNDoesNotExist      = 2
	TaskStillAllegiant   = 3
	ReassignNotSupported = 4
	FunctionNotSupported = 5
	FunctionAuthFailed   = 6
	FunctionSucceeded    = 7 // RFC 7144 5.2: the task or event is there
	FunctionRejected     = 255
)

func (p *TaskMgmtResponse) Decode(b []byte) error {
	if err := start(b, OpTaskMgmtResponse); err != nil {
		return err
	}
	p.Response, p.DataSegmentLength, p.InitiatorTaskTag = b[2], DataSegmentLength(b), u32(b[16:])
	p.Additional = [3]byte(b[8:])
	p.SN.decode(b)
	return nil
}

func (p *TaskMgmtResponse) Encode(b []byte) {
	begin(b, OpTaskMgmtResponse, false, 0x80, p.DataSegmentLength)
	b[2] = p.Response
	copy(b[8:], p.Additional[:])
	put32(b[16:], p.InitiatorTaskTag)
	p.SN.encode(b)
}
