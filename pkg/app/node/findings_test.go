package node

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nearflash/nearflash/pkg/volume"
)

func TestMoveProblems(t *testing.T) {
	const clone, stream, zero = "no target clone", "defects in passthrough mode", "no target zero"
	for name, tc := range map[string]struct {
		moveFacts
		want string
	}{
		"both can be used":              {moveFacts{}, ""},
		"a clone is enough":             {moveFacts{Stream: stream}, ""},
		"a stream is enough":            {moveFacts{Clone: clone}, ""},
		"it receives, and cannot send":  {moveFacts{Clone: clone, Sending: zero}, zero},
		"neither":                       {moveFacts{Clone: clone, Stream: stream}, clone + "; " + stream},
		"neither, and no zero":          {moveFacts{Clone: clone + "; " + zero, Stream: stream, Sending: zero}, clone + "; " + zero + "; " + stream},
		"no streams are wanted":         {moveFacts{Clone: clone, Stream: noStreams}, clone},
		"asked for clone":               {moveFacts{Asked: volume.MethodClone}, ""},
		"asked for clone, in vain":      {moveFacts{Asked: volume.MethodClone, Clone: clone}, clone},
		"asked for stream":              {moveFacts{Asked: volume.MethodStream, Clone: clone}, ""},
		"asked for stream, cannot send": {moveFacts{Asked: volume.MethodStream, Clone: clone, Sending: zero}, zero},
		"asked for stream, in vain":     {moveFacts{Asked: volume.MethodStream, Stream: stream}, stream},
		"asked for what is not set up":  {moveFacts{Asked: volume.MethodStream, Stream: noStreams}, noStreams},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range moveProblems(tc.moveFacts) {
				if s != "" {
					got = append(got, s)
				}
			}
			if got := strings.Join(got, "; "); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// TestProblems: before the first look nothing is said to be there, and each finding is told.
func TestProblems(t *testing.T) {
	p := &plugin{findings: &findings{}, initiator: "iqn.2026-11.io.example:a"}
	if got := p.problems(); !strings.Contains(got, "not examined yet") {
		t.Errorf("got %q", got)
	}
	for _, f := range []*atomic.Pointer[string]{&p.findings.essential, &p.findings.iscsi, &p.findings.cache, &p.findings.warm, &p.findings.tracking, &p.findings.sending} {
		f.Store(new(string))
	}
	if got := p.problems(); got != "" {
		t.Errorf("nothing is missing: %q", got)
	}
	p.findings.essential.Store(new("no device mapper"))
	p.findings.iscsi.Store(new("no iscsid"))
	p.findings.warm.Store(new("no target clone"))
	if got := p.problems(); got != "no device mapper; no iscsid; no target clone" {
		t.Errorf("got %q", got)
	}
}

// TestHostProblems: they are no reason against a volume, and unknown before the first look.
func TestHostProblems(t *testing.T) {
	p := &plugin{findings: &findings{}, cfg: Config{Origins: true}}
	if got, _, looked := p.hostProblems(); got != "" || looked {
		t.Errorf("got %q, %t before the first look", got, looked)
	}
	for _, f := range []*atomic.Pointer[string]{&p.findings.essential, &p.findings.cache, &p.findings.warm, &p.findings.tracking, &p.findings.sending} {
		f.Store(new(string))
	}
	set(t.Context(), &p.findings.host, errors.Join(errors.New("udev looks"), errors.New("multipathd takes")))
	if got, _, looked := p.hostProblems(); got != "udev looks; multipathd takes" || !looked {
		t.Errorf("got %q, %t", got, looked)
	}
	if got := p.problems(); got != "" {
		t.Errorf("the preflight has %q", got)
	}
	if err := p.ready(t.Context()); err != nil {
		t.Errorf("not ready: %v", err)
	}
}

// TestReady: who attaches volumes of other CSI drivers can do without iSCSI, and without an
// initiator's name it is not even a finding.
func TestReady(t *testing.T) {
	for name, tc := range map[string]struct {
		essential, iscsi string
		initiator        string
		origins          bool
		ready            bool
		problems         string
	}{
		"all there":                     {initiator: "iqn", ready: true},
		"no device mapper":              {essential: "no dm", initiator: "iqn", origins: true, problems: "no dm"},
		"no iscsid":                     {iscsi: "no iscsid", initiator: "iqn", problems: "no iscsid"},
		"no iscsid, and other origins":  {iscsi: "no iscsid", initiator: "iqn", origins: true, ready: true, problems: "no iscsid"},
		"no iSCSI at all":               {iscsi: "no initiator name", origins: true, ready: true},
		"no iSCSI and no device mapper": {essential: "no dm", iscsi: "no initiator name", origins: true, problems: "no dm"},
	} {
		p := &plugin{findings: &findings{}, initiator: tc.initiator, cfg: Config{Origins: tc.origins}}
		for f, text := range map[*atomic.Pointer[string]]string{
			&p.findings.essential: tc.essential, &p.findings.iscsi: tc.iscsi, &p.findings.cache: "", &p.findings.warm: "", &p.findings.tracking: "", &p.findings.sending: "",
		} {
			f.Store(&text)
		}
		if err := p.ready(t.Context()); (err == nil) != tc.ready {
			t.Errorf("%s: ready says %v", name, err)
		}
		if got := p.problems(); got != tc.problems {
			t.Errorf("%s: problems %q, want %q", name, got, tc.problems)
		}
	}
}
