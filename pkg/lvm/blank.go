package lvm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearflash/nearflash/pkg/blockdev"
	"github.com/nearflash/nearflash/pkg/hostexec"
)

// Blank implements Client.
func (t *tools) Blank(ctx context.Context, device string) (blank bool, why string, err error) {
	why, err = deviceInUse(device)
	if err != nil || why != "" {
		return false, why, err
	}
	res, err := t.run.Run(ctx, hostexec.Query("wipefs", "--no-act", "--json", device))
	if err != nil {
		return false, "", fmt.Errorf("signatures of %s: %w", device, err)
	}
	found, err := parseSignatures(res.Stdout)
	if err != nil {
		return false, "", fmt.Errorf("signatures of %s: %w", device, err)
	}
	if len(found) > 0 {
		return false, "has a signature: " + strings.Join(found, ", "), nil
	}
	return true, "", nil
}

// parseSignatures reads what `wipefs --no-act --json` prints; nothing at all for
// a device without a signature.
func parseSignatures(text []byte) ([]string, error) {
	if strings.TrimSpace(string(text)) == "" {
		return nil, nil
	}
	var r struct {
		Signatures []struct {
			Type string `json:"type"`
		} `json:"signatures"`
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrParse, err)
	}
	var out []string
	for _, s := range r.Signatures {
		out = append(out, s.Type)
	}
	return out, nil
}

// deviceInUse says what else uses a block device: partitions, devices above it,
// or a mount. The kernel refuses an exclusive open to the last two.
func deviceInUse(device string) (string, error) {
	f, err := blockdev.Open(device, unix.O_RDONLY|unix.O_EXCL)
	if errors.Is(err, unix.EBUSY) {
		return "is in use: mounted, or part of another device", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: device, Err: err}
	}
	sys := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	parts, err := filepath.Glob(sys + "/*/partition")
	if err != nil {
		return "", err
	}
	if len(parts) > 0 {
		return fmt.Sprintf("has %d partition(s)", len(parts)), nil
	}
	holders, err := filepath.Glob(sys + "/holders/*")
	if err != nil {
		return "", err
	}
	if len(holders) > 0 {
		return "is part of " + filepath.Base(holders[0]), nil
	}
	return "", nil
}
