package file

// SetFdatasync has do called in place of fdatasync.
func (s *Store) SetFdatasync(do func(fd int) error) { s.fdatasync = do }
