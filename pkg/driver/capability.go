package driver

import (
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nearflash/nearflash/pkg/volume"
)

type accessMode = csi.VolumeCapability_AccessMode_Mode

// accessModes are the accepted ones: all that keep a volume on one node, and the one in which
// nobody writes (I1).
var accessModes = []accessMode{
	csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
	csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
}

// fsTypes are the accepted filesystems; the first is the default.
var fsTypes = []string{"ext4", "xfs"}

// access is a checked volume capability.
type access struct {
	// Block asks for a raw block volume.
	Block bool
	// FSType is as given: empty when the caller leaves the choice.
	FSType     string
	MountFlags []string
	ReadOnly   bool
	// Many lets many nodes read the volume, and nobody write.
	Many bool
	// SingleWriter allows one target path only (ReadWriteOncePod).
	SingleWriter bool
}

func parseCapability(c *csi.VolumeCapability) (access, error) {
	if c == nil {
		return access{}, fmt.Errorf("%w: volume_capability is missing", volume.ErrInvalid)
	}
	mode := c.GetAccessMode().GetMode()
	if !slices.Contains(accessModes, mode) {
		return access{}, fmt.Errorf("%w: access mode %s is not offered; accepted are %s", volume.ErrInvalid, mode, joinModes())
	}
	many := mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	a := access{
		ReadOnly:     many || mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		Many:         many,
		SingleWriter: mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
	}
	switch t := c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		a.Block = true
	case *csi.VolumeCapability_Mount:
		a.FSType = t.Mount.GetFsType()
		a.MountFlags = t.Mount.GetMountFlags()
		if err := checkFSType("fs_type of the volume capability (parameter fsType)", a.FSType); err != nil {
			return access{}, err
		}
	default:
		return access{}, fmt.Errorf("%w: volume_capability has neither block nor mount", volume.ErrInvalid)
	}
	return a, nil
}

// parseCapabilities checks a list of capabilities that a volume must all have.
func parseCapabilities(cs []*csi.VolumeCapability) ([]access, error) {
	if len(cs) == 0 {
		return nil, fmt.Errorf("%w: volume_capabilities are missing", volume.ErrInvalid)
	}
	as := make([]access, 0, len(cs))
	for _, c := range cs {
		a, err := parseCapability(c)
		if err != nil {
			return nil, err
		}
		if len(as) > 0 && a.Block != as[0].Block {
			return nil, fmt.Errorf("%w: volume_capabilities ask for block and mount at once", volume.ErrInvalid)
		}
		if len(as) > 0 && a.Many != as[0].Many {
			return nil, fmt.Errorf("%w: volume_capabilities ask for access mode MULTI_NODE_READER_ONLY (ReadOnlyMany) and for another one at once: a volume is written by one node or read by many; accepted is ReadOnlyMany alone, or without it", volume.ErrInvalid)
		}
		as = append(as, a)
	}
	return as, nil
}

// checkFSType accepts the empty string: the caller has no opinion.
func checkFSType(what, fs string) error {
	if fs == "" || slices.Contains(fsTypes, fs) {
		return nil
	}
	return fmt.Errorf("%w: %s: %q is not accepted; accepted are %s", volume.ErrInvalid, what, fs, strings.Join(fsTypes, ", "))
}

// agreeFSType returns the filesystem that parameter and capability agree on;
// empty for a block volume.
func agreeFSType(parameter string, as []access) (string, error) {
	fs := parameter
	for _, a := range as {
		switch {
		case a.Block && parameter != "":
			return "", fmt.Errorf("%w: parameter fsType: %q contradicts volumeMode Block, which has no filesystem; leave fsType out", volume.ErrInvalid, parameter)
		case a.Block || a.FSType == "" || a.FSType == fs:
		case fs == "":
			fs = a.FSType
		default:
			return "", fmt.Errorf("%w: parameter fsType: %q contradicts the fs_type %q of the volume capability; give one of the two, or the same", volume.ErrInvalid, fs, a.FSType)
		}
	}
	if fs == "" && !as[0].Block {
		fs = fsTypes[0]
	}
	return fs, nil
}

func joinModes() string {
	names := make([]string, len(accessModes))
	for i, m := range accessModes {
		names[i] = m.String()
	}
	return strings.Join(names, ", ")
}
