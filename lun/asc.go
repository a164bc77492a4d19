package lun

// Additional sense codes and qualifiers, ASC<<8 | ASCQ, as SPC-5 annex F names
// them.
const (
	ASCNone                              = 0x0000
	ASCOperationInProgress               = 0x0016
	ASCNotReadyInitializingRequired      = 0x0402
	ASCNotReadyFormatInProgress          = 0x0404
	ASCNotReadySelfTestInProgress        = 0x0409
	ASCNotReadyTransition                = 0x040a
	ASCNotReadyStandby                   = 0x040b
	ASCNotReadyUnavailable               = 0x040c
	ASCNotReadySpaceAllocation           = 0x0414 // in progress
	ASCNotReadySanitizeInProgress        = 0x041b
	ASCUnreachableCopyTarget             = 0x0804
	ASCWriteError                        = 0x0c00
	ASCThirdPartyDeviceFailure           = 0x0d01
	ASCIncorrectCopyTargetDeviceType     = 0x0d03
	ASCCopyTargetUnderrun                = 0x0d04
	ASCGuardCheckFailed                  = 0x1001
	ASCApplicationTagCheckFailed         = 0x1002
	ASCReferenceTagCheckFailed           = 0x1003
	ASCUnrecoveredReadError              = 0x1100
	ASCMarkedBad                         = 0x1114
	ASCParameterListLengthError          = 0x1a00
	ASCDefectListNotFound                = 0x1c00
	ASCMiscompareDuringVerify            = 0x1d00
	ASCInvalidCommandOperationCode       = 0x2000
	ASCLBAOutOfRange                     = 0x2100
	ASCUnalignedWrite                    = 0x2104
	ASCWriteBoundaryViolation            = 0x2105
	ASCUnsupportedTokenType              = 0x2301
	ASCRemoteTokenUsageNotSupported      = 0x2302
	ASCTokenUnknown                      = 0x2304
	ASCTokenCorrupt                      = 0x2305
	ASCTokenExpired                      = 0x2307
	ASCTokenCancelled                    = 0x2308
	ASCTokenDeleted                      = 0x2309
	ASCInvalidTokenLength                = 0x230a
	ASCInvalidFieldInCDB                 = 0x2400
	ASCLogicalUnitNotSupported           = 0x2500
	ASCInvalidFieldInParameterList       = 0x2600
	ASCInvalidReleaseOfReservation       = 0x2604
	ASCTooManyTargetDescriptors          = 0x2606
	ASCUnsupportedTargetDescriptor       = 0x2607
	ASCTooManySegmentDescriptors         = 0x2608
	ASCUnsupportedSegmentDescriptor      = 0x2609
	ASCInlineDataLengthExceeded          = 0x260b
	ASCCopySegmentGranularityViolation   = 0x260d
	ASCWriteProtected                    = 0x2700
	ASCSoftwareWriteProtected            = 0x2702
	ASCSpaceAllocationFailed             = 0x2707
	ASCMediumMayHaveChanged              = 0x2800
	ASCPowerOnOrReset                    = 0x2900
	ASCBusDeviceReset                    = 0x2903
	ASCNexusLoss                         = 0x2907
	ASCModeParametersChanged             = 0x2a01
	ASCLogParametersChanged              = 0x2a02
	ASCReservationsPreempted             = 0x2a03
	ASCReservationsReleased              = 0x2a04
	ASCRegistrationsPreempted            = 0x2a05
	ASCAsymmetricAccessChanged           = 0x2a06
	ASCCapacityDataHasChanged            = 0x2a09
	ASCTimestampChanged                  = 0x2a10
	ASCCommandSequenceError              = 0x2c00
	ASCORWriteGenerationDoesNotMatch     = 0x2c0c
	ASCCommandsCleared                   = 0x2f00
	ASCCommandsClearedByDeviceServer     = 0x2f02
	ASCMediumFormatCorrupted             = 0x3100
	ASCFormatFailed                      = 0x3101
	ASCSanitizeFailed                    = 0x3103
	ASCThinThresholdReached              = 0x3807
	ASCSavingParametersNotSupported      = 0x3900
	ASCMediumNotPresent                  = 0x3a00
	ASCSelfTestFailed                    = 0x3e03
	ASCMicrocodeChanged                  = 0x3f01
	ASCInquiryDataHasChanged             = 0x3f03
	ASCIdentifierChanged                 = 0x3f05
	ASCReportedLUNsDataHasChanged        = 0x3f0e
	ASCInternalTargetFailure             = 0x4400
	ASCMediumRemovalPrevented            = 0x5302
	ASCInsufficientResources             = 0x5503
	ASCInsufficientRegistrationResources = 0x5504
	ASCInsufficientResourcesForRODToken  = 0x550d
	ASCInsufficientZoneResources         = 0x550e
	ASCFailurePredictionFalse            = 0x5dff
)

// InvalidField is the sense data for a CDB whose field at the given byte, with
// its highest bit there at bit, holds what the unit doesn't take (SPC-5 4.4.2.4.2).
func InvalidField(at int, bit uint8) Sense {
	return Sense{Key: IllegalRequest, Code: ASCInvalidFieldInCDB, Specific: fieldPointer(0xc8, at, bit)}
}

// InvalidParameter is the same for a field of the parameter list.
func InvalidParameter(at int, bit uint8) Sense {
	return Sense{Key: IllegalRequest, Code: ASCInvalidFieldInParameterList, Specific: fieldPointer(0x88, at, bit)}
}

// fieldPointer is SKSV, C/D and BPV as given, and the field.
func fieldPointer(flags byte, at int, bit uint8) [3]byte {
	return [3]byte{flags | bit&7, byte(at >> 8), byte(at)}
}

// progress is how far a background operation has come, in 65,536ths
// (SPC-5 4.4.2.4.4).
func progress(part uint16) [3]byte { return [3]byte{0x80, byte(part >> 8), byte(part)} }
