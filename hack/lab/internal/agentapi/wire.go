package agentapi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Paths of the agent's HTTP interface. Every request carries the lab's token as
// a bearer token.
const (
	// ExecPath runs a command: POST of [ExecRequest], answered by frames.
	ExecPath = "/v1/exec"
	// StatusPath tells how far the guest is: GET, answered by [Status].
	StatusPath = "/v1/status"
	// RestartPath, followed by a service's name, ends that service, which then is
	// started again: POST.
	RestartPath = "/v1/restart/"
	// StopPath ends a service and keeps it from being started until StartPath: POST, answered
	// when it has ended.
	StopPath  = "/v1/stop/"
	StartPath = "/v1/start/"
	// PowerOffPath ends the guest in order: POST.
	PowerOffPath = "/v1/poweroff"
)

// ExecRequest asks the agent to run a command as root.
type ExecRequest struct {
	Argv  []string `json:"argv"`
	Stdin []byte   `json:"stdin,omitempty"`
	Env   []string `json:"env,omitempty"`
	Dir   string   `json:"dir,omitempty"`
}

// Status is how far a guest is.
type Status struct {
	Node string `json:"node"`
	// BootID differs from boot to boot (proc(5), sys/kernel/random/boot_id).
	BootID string `json:"bootID"`
	// Ready is set once everything of the guest's role was started.
	Ready bool `json:"ready"`
	// Error is why it never will be.
	Error string `json:"error,omitempty"`
	// Services maps a service's name to the number of its starts.
	Services map[string]int `json:"services,omitempty"`
	// Running are the services that run.
	Running []string `json:"running,omitempty"`
	// Timeline tells at which uptime each step of the boot was done.
	Timeline []Step `json:"timeline,omitempty"`
}

// Uptime returns when the last step of the boot was done, in seconds.
func (s Status) Uptime() float64 {
	if len(s.Timeline) == 0 {
		return 0
	}
	return s.Timeline[len(s.Timeline)-1].Seconds
}

// Step is one step of the boot.
type Step struct {
	Name string `json:"name"`
	// Seconds of guest uptime.
	Seconds float64 `json:"seconds"`
}

// FrameType says what a frame carries.
type FrameType byte

// Frames of an answer to [ExecRequest]: any number of output, then one exit or
// one error.
const (
	FrameStdout FrameType = 1
	FrameStderr FrameType = 2
	// FrameExit carries the exit code as four bytes, big-endian. A command ended
	// by a signal has 128 plus its number.
	FrameExit FrameType = 3
	// FrameError carries why the command could not be run.
	FrameError FrameType = 4
)

// maxFrame bounds what a reader allocates.
const maxFrame = 1 << 20

// ErrFrame is returned for bytes that are no frame.
var ErrFrame = errors.New("malformed frame")

// ErrRemote is returned when the agent could not run the command.
var ErrRemote = errors.New("command not run")

// FrameWriter writes frames from several goroutines.
type FrameWriter struct {
	mu    sync.Mutex
	w     io.Writer
	flush func()
}

// NewFrameWriter writes to w and calls flush after each frame.
func NewFrameWriter(w io.Writer, flush func()) *FrameWriter {
	return &FrameWriter{w: w, flush: flush}
}

// Write sends one frame.
func (f *FrameWriter) Write(t FrameType, p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	head := [5]byte{byte(t)}
	binary.BigEndian.PutUint32(head[1:], uint32(len(p))) // bounded by the callers' buffers
	if _, err := f.w.Write(head[:]); err != nil {
		return err
	}
	if _, err := f.w.Write(p); err != nil {
		return err
	}
	f.flush()
	return nil
}

// Exit sends the exit code.
func (f *FrameWriter) Exit(code int) error {
	return f.Write(FrameExit, binary.BigEndian.AppendUint32(nil, uint32(code))) // an exit code fits
}

// Stream returns a writer that turns everything into frames of that type.
func (f *FrameWriter) Stream(t FrameType) io.Writer { return stream{f, t} }

type stream struct {
	f *FrameWriter
	t FrameType
}

func (s stream) Write(p []byte) (int, error) {
	sent := 0
	for len(p) > 0 {
		n := min(len(p), maxFrame)
		if err := s.f.Write(s.t, p[:n]); err != nil {
			return sent, err
		}
		sent, p = sent+n, p[n:]
	}
	return sent, nil
}

// ReadFrames copies output frames to the writers until the exit code comes. It
// returns [ErrRemote] when the command was not run, and [io.ErrUnexpectedEOF]
// when the stream ends early, as it does when the guest is killed.
func ReadFrames(r io.Reader, stdout, stderr io.Writer) (int, error) {
	for {
		var head [5]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, fmt.Errorf("read frame: %w", err)
		}
		n := binary.BigEndian.Uint32(head[1:])
		if n > maxFrame {
			return 0, fmt.Errorf("%w: %d bytes", ErrFrame, n)
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(r, body); err != nil {
			return 0, fmt.Errorf("read frame: %w", err)
		}
		var err error
		switch t := FrameType(head[0]); t {
		case FrameStdout:
			_, err = stdout.Write(body)
		case FrameStderr:
			_, err = stderr.Write(body)
		case FrameExit:
			if n != 4 {
				return 0, fmt.Errorf("%w: exit code of %d bytes", ErrFrame, n)
			}
			return int(int32(binary.BigEndian.Uint32(body))), nil // the inverse of Exit
		case FrameError:
			return 0, fmt.Errorf("%w: %s", ErrRemote, body)
		default:
			return 0, fmt.Errorf("%w: type %d", ErrFrame, t)
		}
		if err != nil {
			return 0, fmt.Errorf("copy output: %w", err)
		}
	}
}
