package attach

import (
	"errors"
	"strings"
	"testing"

	"github.com/nearflash/nearflash/pkg/volume"
)

// TestDecideFormat is the table "The filesystem" of states.md: what is not proven to be
// blank, or was ever formatted, is never formatted.
func TestDecideFormat(t *testing.T) {
	blank, ext4, none := volume.Content{Blank: true}, volume.Content{Type: "ext4"}, volume.Content{}
	half := volume.Content{Type: "xfs", Unfinished: true}
	for name, tc := range map[string]struct {
		state    volume.Formatted
		content  volume.Content
		fsType   string
		readOnly bool
		want     formatStep
		wantErr  string
	}{
		"new and blank":                   {state: volume.FormatNever, content: blank, want: formatMake},
		"new, mkfs was killed at once":    {state: volume.FormatBegun, content: blank, want: formatMake},
		"new, mkfs was killed half way":   {state: volume.FormatBegun, content: none, want: formatMake},
		"new, mkfs.xfs was killed":        {state: volume.FormatBegun, content: half, fsType: "xfs", want: formatMake},
		"new, mkfs is over":               {state: volume.FormatBegun, content: ext4, want: formatNote},
		"new, made elsewhere":             {state: volume.FormatNever, content: ext4, want: formatNote},
		"new, mkfs.xfs elsewhere":         {state: volume.FormatNever, content: half, fsType: "xfs", wantErr: "is not blank"},
		"new, but full of something":      {state: volume.FormatNever, content: none, wantErr: "is not blank"},
		"new, of another type":            {state: volume.FormatNever, content: ext4, fsType: "xfs", wantErr: `holds "ext4", fsType xfs was asked for`},
		"begun, of another type":          {state: volume.FormatBegun, content: ext4, fsType: "xfs", wantErr: `holds "ext4", fsType xfs was asked for`},
		"new, read-only":                  {state: volume.FormatNever, content: blank, readOnly: true, wantErr: "a read-only volume is not formatted"},
		"begun, read-only":                {state: volume.FormatBegun, content: none, readOnly: true, wantErr: "a read-only volume is not formatted"},
		"made elsewhere, read-only":       {state: volume.FormatNever, content: ext4, readOnly: true, want: formatMount},
		"formatted":                       {content: ext4, want: formatMount},
		"formatted, read-only":            {content: ext4, readOnly: true, want: formatMount},
		"formatted and blank":             {content: blank, wantErr: `"NeverFormatted"`},
		"formatted and nothing is known":  {content: none, wantErr: `"NeverFormatted"`},
		"formatted and half an xfs":       {content: half, fsType: "xfs", wantErr: "never finished"},
		"formatted, of another type":      {content: ext4, fsType: "xfs", wantErr: `holds "ext4"`},
		"formatted and blank, read-only":  {content: blank, readOnly: true, wantErr: "no filesystem is found"},
		"a state that this does not know": {state: "Reformatting", content: blank, wantErr: "no filesystem is found"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.fsType == "" {
				tc.fsType = "ext4"
			}
			got, err := decideFormat(formatFacts{ID: "v", State: tc.state, Content: tc.content, FSType: tc.fsType, ReadOnly: tc.readOnly})
			if tc.wantErr != "" {
				if !errors.Is(err, volume.ErrInvalid) || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("got %q, %v, want ErrInvalid with %q", got, err, tc.wantErr)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}
