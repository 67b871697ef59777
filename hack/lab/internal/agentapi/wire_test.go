package agentapi

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestFramesRoundTrip(t *testing.T) {
	var buf bytes.Buffer
	w := NewFrameWriter(&buf, func() {})
	big := bytes.Repeat([]byte("x"), 3*maxFrame/2)
	for _, step := range []struct {
		to io.Writer
		p  []byte
	}{{w.Stream(FrameStdout), []byte("out")}, {w.Stream(FrameStderr), []byte("err")}, {w.Stream(FrameStdout), big}} {
		if n, err := step.to.Write(step.p); err != nil || n != len(step.p) {
			t.Fatalf("wrote %d of %d: %v", n, len(step.p), err)
		}
	}
	if err := w.Exit(137); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	code, err := ReadFrames(&buf, &stdout, &stderr)
	if err != nil || code != 137 {
		t.Fatalf("exit code %d, %v", code, err)
	}
	if stdout.String() != "out"+string(big) || stderr.String() != "err" {
		t.Errorf("stdout %d bytes, stderr %q", stdout.Len(), stderr.String())
	}
}

func TestReadFramesErrors(t *testing.T) {
	tests := map[string]struct {
		in      []byte
		wantErr error
	}{
		"guest died before the exit code": {[]byte{1, 0, 0, 0, 1, 'a'}, io.ErrUnexpectedEOF},
		"guest died within a frame":       {[]byte{1, 0, 0, 0, 9, 'a'}, io.ErrUnexpectedEOF},
		"nothing at all":                  {nil, io.ErrUnexpectedEOF},
		"huge frame":                      {[]byte{1, 255, 255, 255, 255}, ErrFrame},
		"unknown type":                    {[]byte{9, 0, 0, 0, 0}, ErrFrame},
		"short exit code":                 {[]byte{3, 0, 0, 0, 1, 0}, ErrFrame},
		"not run":                         {[]byte{4, 0, 0, 0, 2, 'n', 'o'}, ErrRemote},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := ReadFrames(bytes.NewReader(tc.in), io.Discard, io.Discard); !errors.Is(err, tc.wantErr) {
				t.Errorf("error %v, want %v", err, tc.wantErr)
			}
		})
	}
}
