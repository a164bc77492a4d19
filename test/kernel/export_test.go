package kernel

// SetSharedMemory has UML's memory somewhere else, if there is room, until restore.
func SetSharedMemory(dir string) (restore func()) {
	old := sharedMemory
	sharedMemory = dir
	return func() { sharedMemory = old }
}

// SetKVMDevice has another file tell whether there is KVM, until restore.
func SetKVMDevice(file string) (restore func()) {
	old := kvmDevice
	kvmDevice = file
	return func() { kvmDevice = old }
}
