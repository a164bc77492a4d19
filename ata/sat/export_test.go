package sat

// Waiting returns how many commands wait for the drive.
func Waiting(u *Unit) int {
	u.slots.mu.Lock()
	defer u.slots.mu.Unlock()
	return len(u.slots.waiting)
}
