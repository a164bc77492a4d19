package kernel

// SetKVMDevice has another file tell whether there is KVM, until restore.
func SetKVMDevice(file string) (restore func()) {
	old := kvmDevice
	kvmDevice = file
	return func() { kvmDevice = old }
}
