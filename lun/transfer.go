package lun

import "lunlab/lun/store"

// WriteFunc is a way to write that a store has: [store.Store.WriteAt], or that of a
// [store.DurableWriter].
type WriteFunc func(p []byte, off int64) (int, error)

// worthGathering is the length below which pieces are put together for a store
// that makes a system call for each.
const worthGathering = 16 << 10

// ReadStore reads n bytes at off of s into a scatter list, as far as it has room.
// On an error it returns how many bytes were read before it. volatile says that the
// store is memory, for which nothing is put together.
func ReadStore(s store.Store, volatile bool, to [][]byte, off, n uint64) (done uint64, err error) {
	n = min(n, total(to))
	out := cursor{list: to}
	var buf *[scratchSize]byte
	for done < n && err == nil {
		part, left := out.rest(), n-done
		part = part[:min(uint64(len(part)), left)]
		gathered := !volatile && len(part) < worthGathering && uint64(len(part)) < left
		if gathered {
			if buf == nil {
				buf = scratch.Get().(*[scratchSize]byte)
			}
			part = buf[:min(left, scratchSize)]
		}
		var read int
		if read, err = s.ReadAt(part, int64(off+done)); err == nil {
			read = len(part)
		}
		if gathered {
			out.write(part)
		} else {
			out.skip(uint64(len(part)))
		}
		done += uint64(read)
	}
	if buf != nil {
		scratch.Put(buf)
	}
	return done, err
}

// WriteStore writes up to n blocks of size bytes at off from a scatter list after
// its first skip bytes, as many as it has whole. On an error it returns how many
// bytes were written before it.
//
// The store gets whole blocks however the data is scattered, so that a process
// that is killed leaves none half written.
func WriteStore(write WriteFunc, volatile bool, from [][]byte, skip, off, n, size uint64) (done uint64, err error) {
	have := total(from)
	have -= min(have, skip)
	n = min(n, have/size) * size
	in := cursor{list: from}
	in.skip(skip)
	var buf *[scratchSize]byte
	for done < n && err == nil {
		part, left := in.rest(), n-done
		part = part[:min(uint64(len(part)), left)/size*size]
		if len(part) > 0 && (volatile || len(part) >= worthGathering) {
			in.skip(uint64(len(part)))
		} else {
			if buf == nil {
				buf = scratch.Get().(*[scratchSize]byte)
			}
			part = buf[:min(left, scratchSize)]
			in.read(part)
		}
		var wrote int
		if wrote, err = write(part, int64(off+done)); err == nil {
			wrote = len(part)
		}
		done += uint64(wrote)
	}
	if buf != nil {
		scratch.Put(buf)
	}
	return done, err
}
