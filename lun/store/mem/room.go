package mem

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"lunlab/lun/store"
)

// Room is memory that stores share, as the thin disks of a pool do. It is safe
// for concurrent use.
type Room struct {
	limit  atomic.Int64 // bytes of chunks, 0 for as many as there is memory
	used   atomic.Int64
	coming atomic.Bool
	stores atomic.Int32 // that aren't closed
}

// NewRoom returns room for limit bytes (rounded up to 64 KiB chunks), 0 for as
// many as there is memory.
func NewRoom(limit int64) *Room {
	r := new(Room)
	r.limit.Store(limit)
	return r
}

// Limit returns how many bytes there is room for, 0 if there is no limit.
func (r *Room) Limit() int64 { return r.limit.Load() }

// SetLimit makes the room larger or smaller, but not to one without a limit, or one
// that had none to one with. Stores keep what they have, also above the limit.
func (r *Room) SetLimit(limit int64) error {
	old := r.limit.Load()
	if limit <= 0 || old == 0 || !r.limit.CompareAndSwap(old, limit) {
		return fmt.Errorf("mem: room with a limit of %d bytes can't get one of %d", old, limit)
	}
	return nil
}

// Expect says whether more room is on its way. While it is, a write for which there
// is none fails with [store.ErrNoRoomYet] instead of ENOSPC.
func (r *Room) Expect(more bool) { r.coming.Store(more) }

// take takes room for a chunk, if there is any.
func (r *Room) take() error {
	// Looked at first: room that came in between isn't taken for missing for good.
	coming, limit := r.coming.Load(), r.limit.Load()
	if r.used.Add(chunkSize) <= limit || limit == 0 {
		return nil
	}
	r.used.Add(-chunkSize)
	err := error(syscall.ENOSPC)
	if coming {
		err = store.ErrNoRoomYet
	}
	return fmt.Errorf("mem: limit of %d bytes reached: %w", limit, err)
}

func (r *Room) give(n int64) { r.used.Add(-n) }
