package vhostuser

// Protection information (virtio 1.2 5.6.6.1, VIRTIO_SCSI_F_T10_PI). Virtio has it
// before the data, SBC-4 after each block.

const (
	tupleSize = 8
	blockUnit = 512 // of which a block's length is a multiple
)

// pieces is a scatter list of blocks with their protection information after each.
type pieces struct {
	list  [][]byte
	tuple [][]byte // the protection information alone
}

// maxPieces is how long a list may be that is kept for the next command.
const maxPieces = 4096

func (p *pieces) release() {
	p.list, p.tuple = p.list[:0], p.tuple[:0]
	if cap(p.list) > maxPieces {
		p.list = nil
	}
}

// protectField returns the byte of a READ, WRITE or VERIFY that has RDPROTECT,
// WRPROTECT or VRPROTECT in its high bits, or 0 for a CDB without.
func protectField(cdb []byte) int {
	switch cdb[0] {
	case 0x28, 0xa8, 0x88, 0x2a, 0xaa, 0x8a, // READ, WRITE (10), (12), (16)
		0x2e, 0xae, 0x8e, 0x2f, 0xaf, 0x8f, // WRITE AND VERIFY, VERIFY
		0x41, 0x93: // WRITE SAME (10), (16)
		return 1
	case 0x7f:
		return 10
	}
	return 0
}

// layoutPI brings blocks and protection information together as SBC-4 has them.
// want is what the unit moves. It returns false if that isn't to be.
//
// Where the unit is to move protection information and the driver has none to
// give or to take, the unit makes or checks it by itself, as an adapter would.
func (t *task) layoutPI(want [2]uint64) bool {
	if t.req.outPI|t.req.inPI == 0 {
		at := protectField(t.CDB)
		if at > 0 && t.CDB[at]>>5 != 0 && (want[0] > t.outLen || want[1] > t.inLen) {
			t.CDB[at] &= 0x1f
		}
		return true
	}
	var ok [2]bool
	t.out, ok[0] = t.pieces[0].interleave(t.out, uint64(t.req.outPI), want[0])
	t.in, ok[1] = t.pieces[1].interleave(t.in, uint64(t.req.inPI), want[1])
	return ok[0] && ok[1]
}

// interleave makes a list of blocks and tuples of one that begins with n bytes of
// tuples. want is how long it has to be, 0 if nothing will be moved.
func (p *pieces) interleave(list [][]byte, n, want uint64) ([][]byte, bool) {
	all := size(list)
	if n == 0 || want == 0 {
		return list, true
	}
	blocks := n / tupleSize
	if n%tupleSize != 0 || all != want || n > all || (all-n)%(blocks*blockUnit) != 0 {
		return nil, false
	}
	block := int((all - n) / blocks)
	var rest [][]byte
	p.tuple, rest = cut(p.tuple[:0], list, int(n))
	tuples := p.tuple
	p.list = p.list[:0]
	for range blocks {
		p.list, rest = cut(p.list, rest, block)
		p.list, tuples = cut(p.list, tuples, tupleSize)
	}
	return p.list, true
}
