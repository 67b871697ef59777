package lvoltest

import (
	"errors"
	"fmt"
	"strings"
)

// snapshot is lvcreate --snapshot of a thin volume. As the real one, it has written the
// group's metadata before the pool makes the snapshot: killed between the two, what comes
// next makes it, of the content of that moment.
func (l *LVM) snapshot(a args, v *lv) error {
	origin, err := l.find(a.words[0])
	if err != nil {
		//lint:ignore ST1005 LVM's words
		return fmt.Errorf("Snapshot origin LV %s not found in Volume group %s.", strings.TrimPrefix(a.words[0], VG+"/"), VG)
	}
	if !origin.thin {
		//lint:ignore ST1005 LVM's words
		return errors.New("Please specify either size or extents with snapshots.")
	}
	l.tellPool()
	v.thin, v.size, v.active, v.origin = true, origin.size, a.opt("--setactivationskip") == "n", origin
	l.lvs[v.name] = v
	if l.Step != nil {
		l.mu.Unlock()
		err = l.Step("tell the pool of " + v.name)
		l.mu.Lock()
	}
	if err != nil {
		return stepError{err}
	}
	l.tellPool()
	return nil
}

// stepError is what LVM.Step has said in the middle of a command.
type stepError struct{ error }

// tellPool makes the snapshots of which the pool has not heard yet.
func (l *LVM) tellPool() {
	for _, v := range l.lvs {
		if v.origin != nil {
			v.content, v.origin = v.origin.content, nil
		}
	}
}

// Write replaces the content of a volume that is active.
func (l *LVM) Write(name, content string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.lvs[name]
	if v == nil || !v.active {
		return fmt.Errorf("%s: %w", name, ErrNoDevice)
	}
	v.content = content
	return nil
}

// Read returns the content of a volume that is active.
func (l *LVM) Read(name string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.lvs[name]
	if v == nil || !v.active {
		return "", fmt.Errorf("%s: %w", name, ErrNoDevice)
	}
	return v.content, nil
}
