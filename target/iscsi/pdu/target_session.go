package pdu

// LoginResponse is the Login Response (RFC 7143 11.13).
type LoginResponse struct {
	Transit           bool
	Continue          bool
	CSG, NSG          uint8
	VersionMax        uint8
	VersionActive     uint8
	DataSegmentLength int
	ISID              [6]byte
	TSIH              uint16
	InitiatorTaskTag  uint32
	SN                SN
	Status            LoginStatus
}

// LoginStatus is Status-Class<<8 | Status-Detail (RFC 7143 11.13.5).
type LoginStatus uint16

const (
	LoginSuccess            LoginStatus = 0x0000
	TargetMovedTemporarily  LoginStatus = 0x0101
	TargetMovedPermanently  LoginStatus = 0x0102
	InitiatorError          LoginStatus = 0x0200
	AuthenticationFailure   LoginStatus = 0x0201
	AuthorizationFailure    LoginStatus = 0x0202
	NotFound                LoginStatus = 0x0203
	TargetRemoved           LoginStatus = 0x0204
	UnsupportedVersion      LoginStatus = 0x0205
	TooManyConnections      LoginStatus = 0x0206
	MissingParameter        LoginStatus = 0x0207
	CantIncludeInSession    LoginStatus = 0x0208
	SessionTypeNotSupported LoginStatus = 0x0209
	SessionDoesNotExist     LoginStatus = 0x020a
	InvalidDuringLogin      LoginStatus = 0x020b
	TargetError             LoginStatus = 0x0300
	ServiceUnavailable      LoginStatus = 0x0301
	OutOfResources          LoginStatus = 0x0302
)

func (p *LoginResponse) Decode(b []byte) error {
	if err := start(b, OpLoginResponse); err != nil {
		return err
	}
	p.Transit, p.Continue, p.CSG, p.NSG = final(b), b[1]&0x40 != 0, b[1]>>2&3, b[1]&3
	p.VersionMax, p.VersionActive, p.DataSegmentLength = b[2], b[3], DataSegmentLength(b)
	p.ISID, p.TSIH, p.InitiatorTaskTag = isid(b), u16(b[14:]), u32(b[16:])
	p.SN.decode(b)
	p.Status = LoginStatus(u16(b[36:]))
	return nil
}

func (p *LoginResponse) Encode(b []byte) {
	begin(b, OpLoginResponse, false, flag(p.Transit, 0x80)|flag(p.Continue, 0x40)|p.CSG&3<<2|p.NSG&3, p.DataSegmentLength)
	b[2], b[3] = p.VersionMax, p.VersionActive
	copy(b[8:], p.ISID[:])
	put16(b[14:], p.TSIH)
	put32(b[16:], p.InitiatorTaskTag)
	p.SN.encode(b)
	put16(b[36:], uint16(p.Status))
}

// TextResponse is the Text Response (RFC 7143 11.11).
type TextResponse struct {
	Final             bool
	Continue          bool
	DataSegmentLength int
	LUN               LUN
	InitiatorTaskTag  uint32
	TargetTransferTag uint32
	SN                SN
}

func (p *TextResponse) Decode(b []byte) error {
	if err := start(b, OpTextResponse); err != nil {
		return err
	}
	p.Final, p.Continue, p.DataSegmentLength = final(b), b[1]&0x40 != 0, DataSegmentLength(b)
	p.LUN, p.InitiatorTaskTag, p.TargetTransferTag = lunAt(b), u32(b[16:]), u32(b[20:])
	p.SN.decode(b)
	return nil
}

func (p *TextResponse) Encode(b []byte) {
	begin(b, OpTextResponse, false, flag(p.Final, 0x80)|flag(p.Continue, 0x40), p.DataSegmentLength)
	copy(b[8:], p.LUN[:])
	put32(b[16:], p.InitiatorTaskTag)
	put32(b[20:], p.TargetTransferTag)
	p.SN.encode(b)
}

// DataIn is the SCSI Data-In (RFC 7143 11.7).
type DataIn struct {
	Final       bool
	Acknowledge bool

	// HasStatus is the S bit: Status, StatSN, Residual and ResidualCount count.
	HasStatus         bool
	Residual          uint8 // Overflow and Underflow
	Status            uint8
	DataSegmentLength int
	LUN               LUN
	InitiatorTaskTag  uint32
	TargetTransferTag uint32
	SN                SN
	DataSN            uint32
	BufferOffset      uint32
	ResidualCount     uint32
}

func (p *DataIn) Decode(b []byte) error {
	if err := start(b, OpDataIn); err != nil {
		return err
	}
	p.Final, p.Acknowledge, p.HasStatus = final(b), b[1]&0x40 != 0, b[1]&0x01 != 0
	p.Residual, p.Status = b[1]&(Overflow|Underflow), b[3]
	p.DataSegmentLength, p.LUN = DataSegmentLength(b), lunAt(b)
	p.InitiatorTaskTag, p.TargetTransferTag = u32(b[16:]), u32(b[20:])
	p.SN.decode(b)
	p.DataSN, p.BufferOffset, p.ResidualCount = u32(b[36:]), u32(b[40:]), u32(b[44:])
	return nil
}

func (p *DataIn) Encode(b []byte) {
	begin(b, OpDataIn, false, flag(p.Final, 0x80)|flag(p.Acknowledge, 0x40)|p.Residual&(Overflow|Underflow)|flag(p.HasStatus, 0x01), p.DataSegmentLength)
	b[3] = p.Status
	copy(b[8:], p.LUN[:])
	put32(b[16:], p.InitiatorTaskTag)
	put32(b[20:], p.TargetTransferTag)
	p.SN.encode(b)
	put32(b[36:], p.DataSN)
	put32(b[40:], p.BufferOffset)
	put32(b[44:], p.ResidualCount)
}

// LogoutResponse is the Logout Response (RFC 7143 11.15).
type LogoutResponse struct {
	Response          uint8
	DataSegmentLength int
	InitiatorTaskTag  uint32
	SN                SN

	// Time2Wait and Time2Retain are in seconds.
	Time2Wait, Time2Retain uint16
}

// Responses to a logout (RFC 7143 11.15.1).
const (
	LogoutSuccess       = 0
	LogoutCIDNotFound   = 1
	LogoutNoRecovery    = 2
	LogoutCleanupFailed = 3
)

func (p *LogoutResponse) Decode(b []byte) error {
	if err := start(b, OpLogoutResponse); err != nil {
		return err
	}
	p.Response, p.DataSegmentLength, p.InitiatorTaskTag = b[2], DataSegmentLength(b), u32(b[16:])
	p.SN.decode(b)
	p.Time2Wait, p.Time2Retain = u16(b[40:]), u16(b[42:])
	return nil
}

func (p *LogoutResponse) Encode(b []byte) {
	begin(b, OpLogoutResponse, false, 0x80, p.DataSegmentLength)
	b[2] = p.Response
	put32(b[16:], p.InitiatorTaskTag)
	p.SN.encode(b)
	put16(b[40:], p.Time2Wait)
	put16(b[42:], p.Time2Retain)
}

// R2T is the Ready To Transfer (RFC 7143 11.8).
type R2T struct {
	DataSegmentLength         int
	LUN                       LUN
	InitiatorTaskTag          uint32
	TargetTransferTag         uint32
	SN                        SN
	R2TSN                     uint32
	BufferOffset              uint32
	DesiredDataTransferLength uint32
}

func (p *R2T) Decode(b []byte) error {
	if err := start(b, OpR2T); err != nil {
		return err
	}
	p.DataSegmentLength, p.LUN = DataSegmentLength(b), lunAt(b)
	p.InitiatorTaskTag, p.TargetTransferTag = u32(b[16:]), u32(b[20:])
	p.SN.decode(b)
	p.R2TSN, p.BufferOffset, p.DesiredDataTransferLength = u32(b[36:]), u32(b[40:]), u32(b[44:])
	return nil
}

func (p *R2T) Encode(b []byte) {
	begin(b, OpR2T, false, 0x80, p.DataSegmentLength)
	copy(b[8:], p.LUN[:])
	put32(b[16:], p.InitiatorTaskTag)
	put32(b[20:], p.TargetTransferTag)
	p.SN.encode(b)
	put32(b[36:], p.R2TSN)
	put32(b[40:], p.BufferOffset)
	put32(b[44:], p.DesiredDataTransferLength)
}

// AsyncEvent is what an Asynchronous Message tells (RFC 7143 11.9.1).
type AsyncEvent uint8

const (
	AsyncSCSIEvent       AsyncEvent = 0 // sense data in the data segment
	AsyncLogoutRequest   AsyncEvent = 1 // log out within Parameter3 seconds
	AsyncConnectionDrop  AsyncEvent = 2 // of the CID in Parameter1
	AsyncSessionDrop     AsyncEvent = 3
	AsyncNegotiate       AsyncEvent = 4
	AsyncTasksTerminated AsyncEvent = 5
	AsyncVendorSpecific  AsyncEvent = 255
)

// AsyncMessage is the Asynchronous Message (RFC 7143 11.9).
type AsyncMessage struct {
	DataSegmentLength                  int
	LUN                                LUN
	SN                                 SN
	AsyncEvent                         AsyncEvent
	AsyncVCode                         uint8
	Parameter1, Parameter2, Parameter3 uint16
}

func (p *AsyncMessage) Decode(b []byte) error {
	if err := start(b, OpAsyncMessage); err != nil {
		return err
	}
	p.DataSegmentLength, p.LUN = DataSegmentLength(b), lunAt(b)
	p.SN.decode(b)
	p.AsyncEvent, p.AsyncVCode = AsyncEvent(b[36]), b[37]
	p.Parameter1, p.Parameter2, p.Parameter3 = u16(b[38:]), u16(b[40:]), u16(b[42:])
	return nil
}

func (p *AsyncMessage) Encode(b []byte) {
	begin(b, OpAsyncMessage, false, 0x80, p.DataSegmentLength)
	copy(b[8:], p.LUN[:])
	put32(b[16:], NoTag)
	p.SN.encode(b)
	b[36], b[37] = byte(p.AsyncEvent), p.AsyncVCode
	put16(b[38:], p.Parameter1)
	put16(b[40:], p.Parameter2)
	put16(b[42:], p.Parameter3)
}

// Reason is why a PDU was rejected (RFC 7143 11.17.1).
type Reason uint8

const (
	ReasonDataDigest       Reason = 0x02
	ReasonSNACK            Reason = 0x03
	ReasonProtocolError    Reason = 0x04
	ReasonNotSupported     Reason = 0x05
	ReasonTooManyImmediate Reason = 0x06
	ReasonTaskInProgress   Reason = 0x07
	ReasonInvalidDataACK   Reason = 0x08
	ReasonInvalidField     Reason = 0x09
	ReasonLongOperation    Reason = 0x0a
	ReasonWaitingForLogout Reason = 0x0c
)

// Reject is the Reject (RFC 7143 11.17). Its data segment is the header of the
// PDU that was rejected.
type Reject struct {
	Reason            Reason
	DataSegmentLength int
	SN                SN

	// DataSN counts what was sent for the task, in a rejected Data SNACK.
	DataSN uint32
}

func (p *Reject) Decode(b []byte) error {
	if err := start(b, OpReject); err != nil {
		return err
	}
	p.Reason, p.DataSegmentLength = Reason(b[2]), DataSegmentLength(b)
	p.SN.decode(b)
	p.DataSN = u32(b[36:])
	return nil
}

func (p *Reject) Encode(b []byte) {
	begin(b, OpReject, false, 0x80, p.DataSegmentLength)
	b[2] = byte(p.Reason)
	put32(b[16:], NoTag)
	p.SN.encode(b)
	put32(b[36:], p.DataSN)
}
