// Package smart asks an SSD for its health and wear through smartctl(8) of
// smartmontools, which knows what is vendor specific in it.
package smart

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/utils/ptr"

	"github.com/nearflash/nearflash/pkg/hostexec"
)

// Verdict is what a device thinks of its own future.
type Verdict string

const (
	// Passed means that the device expects no failure.
	Passed Verdict = "passed"
	// Failing means that the device expects to fail, or is worn out.
	Failing Verdict = "failing"
)

// Health is what a device says of itself. The zero value says nothing.
type Health struct {
	// Verdict is empty if the device gives none.
	Verdict Verdict
	// WearPercent is how much of the rated endurance is used, from 0; more than
	// 100 is possible. It is nil if the device does not tell.
	WearPercent *int32
}

// maxWear is the largest value of NVMe's percentage used, which stands for all
// above.
const maxWear = 255

// wornOut is the wear from which the maker promises nothing any more, although
// many a device then still passes its own test.
const wornOut = 100

// Bits of smartctl's exit status (smartctl(8), EXIT STATUS). Those above speak of
// the device's state, which is in the output too.
const (
	exitCommandLine = 1 << 0
	exitOpen        = 1 << 1
)

// Read asks a device, or the disk that a partition is on. A machine without
// smartctl, and a device without SMART such as a virtual disk, give the zero
// Health without an error. An error means that smartctl was ended by ctx or said
// something that is not understood.
func Read(ctx context.Context, run hostexec.Runner, device string) (Health, error) {
	res, err := run.Run(ctx, hostexec.Query("smartctl", "--json", "--all", disk("/sys", device)))
	var exit *hostexec.ExitError
	switch {
	case errors.Is(err, hostexec.ErrNotInstalled):
		return Health{}, nil
	case errors.As(err, &exit):
		if exit.ExitCode < 0 || exit.ExitCode&(exitCommandLine|exitOpen) != 0 {
			return Health{}, nil
		}
	case err != nil:
		return Health{}, fmt.Errorf("health of %s: %w", device, err)
	}
	h, err := parse(res.Stdout)
	if err != nil {
		return Health{}, fmt.Errorf("health of %s: %w", device, err)
	}
	return h, nil
}

// disk is the whole device of a partition, which sysfs shows as the directory
// that holds it.
func disk(sysfs, device string) string {
	node, err := filepath.EvalSymlinks(filepath.Join(sysfs, "class/block", filepath.Base(device)))
	if err != nil {
		return device
	}
	if _, err := os.Stat(filepath.Join(node, "partition")); err != nil {
		return device
	}
	return filepath.Join(filepath.Dir(device), filepath.Base(filepath.Dir(node)))
}

// output is the part of smartctl's JSON, format version 1, that is used. A
// pointer is nil where the device, or the version of smartctl, says nothing.
type output struct {
	Status *struct {
		Passed *bool `json:"passed"`
	} `json:"smart_status"`
	// Endurance is the same for all protocols, in newer versions.
	Endurance *struct {
		CurrentPercent *int32 `json:"current_percent"`
	} `json:"endurance_used"`
	NVMe *struct {
		PercentageUsed *int32 `json:"percentage_used"`
	} `json:"nvme_smart_health_information_log"`
	SCSI *int32 `json:"scsi_percentage_used_endurance_indicator"`
	ATA  *struct {
		Table []attribute `json:"table"`
	} `json:"ata_smart_attributes"`
}

// attribute is one of an ATA device. Value is normalized and counts down from
// 100.
type attribute struct {
	Name  string `json:"name"`
	Value int32  `json:"value"`
}

// lifeLeft reports whether an ATA attribute is the endurance that is left, in
// percent. The number of an attribute means different things with different
// makers; smartctl's name for it, from its database of drives, does not.
func lifeLeft(name string) bool {
	switch name {
	case "Media_Wearout_Indicator", "Wear_Leveling_Count", "SSD_Life_Left", "Percent_Lifetime_Remain", "Remaining_Lifetime_Perc":
		return true
	}
	return false
}

func parse(text []byte) (Health, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return Health{}, nil
	}
	var out output
	if err := json.Unmarshal(text, &out); err != nil {
		return Health{}, fmt.Errorf("output of smartctl: %w", err)
	}
	var h Health
	if out.Status != nil && out.Status.Passed != nil {
		h.Verdict = Failing
		if *out.Status.Passed {
			h.Verdict = Passed
		}
	}
	if wear := out.wear(); wear != nil && *wear >= 0 {
		h.WearPercent = ptr.To(min(*wear, maxWear))
		if *wear >= wornOut {
			h.Verdict = Failing
		}
	}
	return h, nil
}

// wear takes the most direct figure that there is.
func (o output) wear() *int32 {
	switch {
	case o.Endurance != nil && o.Endurance.CurrentPercent != nil:
		return o.Endurance.CurrentPercent
	case o.NVMe != nil && o.NVMe.PercentageUsed != nil:
		return o.NVMe.PercentageUsed
	case o.SCSI != nil:
		return o.SCSI
	case o.ATA == nil:
		return nil
	}
	for _, a := range o.ATA.Table {
		if lifeLeft(a.Name) && a.Value >= 0 && a.Value <= 100 {
			return ptr.To(100 - a.Value)
		}
	}
	return nil
}
