package lun

// Operation is a command that a [Disk] may have.
type Operation struct {
	Name   string // as in the standard: "READ(10)"
	Code   uint8
	Action int32 // service action, -1 if the operation code has none
}

// Operations lists every command that a disk of some options has, in no order
// that matters. A name may be there more than once.
func Operations() []Operation {
	var list []Operation
	all := ops()
	for i := range all {
		e := newEntry(&all[i], false)
		list = append(list, Operation{Name: e.Name, Code: e.Code, Action: e.Action})
	}
	return list
}

// ServiceAction is the service action of a CDB, or -1 if its operation code has
// none or it is too short.
func ServiceAction(cdb []byte) int32 {
	if len(cdb) < 2 || !hasAction(cdb[0]) {
		return -1
	}
	return actionOf(cdb[0], cdb)
}
