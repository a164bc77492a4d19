// Package ata is an ATA drive (ACS-4) with a serial interface (SATA 3.5): a [Drive]
// takes commands as a host's Register FIS carries them, and answers with registers.
// What carries them, an AHCI port, a SAS phy or a translation of SCSI commands
// (package sat), is somebody else's business.
//
// What the drive doesn't have is aborted, as the standard says, and IDENTIFY DEVICE
// says that it isn't there.
package ata
