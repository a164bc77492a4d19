package null_test

import (
	"testing"

	"lunlab/lun/store"
	"lunlab/lun/store/null"
	"lunlab/lun/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		s, err := null.New(storetest.Size)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, storetest.Options{Forgets: true})
}

func TestForgets(t *testing.T) {
	s, err := null.New(1 << 50)
	if err != nil {
		t.Fatal(err)
	}
	p := []byte{1, 2, 3}
	if n, err := s.WriteAt(p, 1<<49); n != 3 || err != nil {
		t.Fatalf("WriteAt = %d, %v", n, err)
	}
	if _, err := s.ReadAt(p, 1<<49); err != nil || p[0]|p[1]|p[2] != 0 {
		t.Errorf("read %v, %v; want zeros", p, err)
	}
	if _, err := null.New(-1); err == nil {
		t.Error("New(-1) gave no error")
	}
}
