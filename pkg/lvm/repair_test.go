package lvm

import (
	"errors"
	"testing"
)

// TestRepairCopies: the kernel is asked, by the name that LVM gives a logical volume there.
func TestRepairCopies(t *testing.T) {
	run, c, _ := client(t)
	const message = "dmsetup message vg--1-pvc--a.data 0 repair"
	repair := func() error { return c.RepairCopies(t.Context(), "vg-1", "pvc-a.data") }
	run.On(message).Once()
	if err := repair(); err != nil {
		t.Error(err)
	}
	const said = "device-mapper: message ioctl on vg--1-pvc--a.data  failed: "
	for why, want := range map[string]error{"No such device or address": ErrNotFound, "Device or resource busy": ErrBusy} {
		run.On(message).Fail(1, said+why+"\nCommand failed.\n").Once()
		if err := repair(); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", why, err, want)
		}
	}
	run.On(message).Fail(1, said+"Invalid argument\nCommand failed.\n").Once()
	if err := repair(); err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrBusy) {
		t.Errorf("not a mirror: %v", err)
	}
}
