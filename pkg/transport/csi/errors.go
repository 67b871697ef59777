package csi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearflash/nearflash/pkg/transport"
	"github.com/nearflash/nearflash/pkg/volume"
)

// maxMessage is how much of a driver's message an error repeats, in bytes.
const maxMessage = 1024

// CallError is the refusal of a driver. It matches, by errors.Is, what its code means: an
// error of package transport or volume.
type CallError struct {
	// Driver is the driver's name, Method the call such as NodeStageVolume.
	Driver, Method string
	// Code and Message are the driver's; the message without secrets, and shortened.
	Code    codes.Code
	Message string
	kinds   []error
}

// Error implements error.
func (e *CallError) Error() string {
	text := fmt.Sprintf("%s of CSI driver %s: %s: %s", e.Method, e.Driver, e.Code, e.Message)
	if len(e.kinds) > 0 {
		text = e.kinds[0].Error() + ": " + text
	}
	return text
}

// Unwrap returns what the code means.
func (e *CallError) Unwrap() []error { return e.kinds }

// kinds says what the codes of the CSI specification mean (spec.md, "Error Scheme").
var kinds = map[codes.Code][]error{
	codes.Unavailable:        {transport.ErrUnreachable},
	codes.DeadlineExceeded:   {transport.ErrUnreachable, context.DeadlineExceeded},
	codes.Canceled:           {context.Canceled},
	codes.Unauthenticated:    {transport.ErrAuth},
	codes.PermissionDenied:   {transport.ErrAuth},
	codes.NotFound:           {transport.ErrNoTarget},
	codes.InvalidArgument:    {transport.ErrInvalid},
	codes.OutOfRange:         {transport.ErrInvalid},
	codes.Aborted:            {volume.ErrBusy},        // another call for the volume is pending
	codes.FailedPrecondition: {volume.ErrInUse},       // in use elsewhere, or not attached
	codes.ResourceExhausted:  {volume.ErrUnavailable}, // the node's limit of volumes
	codes.AlreadyExists:      {transport.ErrMismatch}, // published, and otherwise
	codes.Unimplemented:      {transport.ErrInvalid},  // what it has announced
	codes.Internal:           {volume.ErrUnavailable}, // may pass
	codes.Unknown:            {volume.ErrUnavailable}, // may pass
	codes.DataLoss:           {volume.ErrUnavailable}, // may pass
}

// newCallError makes an error of that of a gRPC call. The error itself is not kept: its text
// may have secrets.
func newCallError(driver, method string, err error, secrets map[string]string) error {
	s := status.Convert(err)
	return &CallError{Driver: driver, Method: method, Code: s.Code(), Message: plain(s.Message(), secrets), kinds: kinds[s.Code()]}
}

const redacted = "[redacted]"

func redact(text string, values []string) string {
	// Longer ones first: one may be a part of another.
	slices.SortFunc(values, func(a, b string) int { return len(b) - len(a) })
	for _, v := range values {
		if v != "" && v != " " {
			text = strings.ReplaceAll(text, v, redacted)
		}
	}
	return text
}

// printable makes blanks of what does not print.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// plain makes a line for people of what a driver says: without the values of secrets, control
// characters or an end that is far away.
func plain(text string, secrets map[string]string) string {
	var values []string
	for _, v := range secrets {
		values = append(values, v, printable(v)) // on several lines, or made one line of
	}
	text = printable(redact(text, values))
	text = redact(text, values)
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "..."
	}
	return text
}
