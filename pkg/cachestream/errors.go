package cachestream

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nearflash/nearflash/pkg/cachestream/streampb"
	"github.com/nearflash/nearflash/pkg/volume"
)

// Errors of a Client beside those of pkg/volume.
var (
	// ErrBroken means that the other node sends what it must not. To ask it again is of no use.
	ErrBroken = errors.New("the stream of the source node is broken")
	// ErrKey means that who answers has not the key that the source node's CachePool says;
	// it comes with volume.ErrUnavailable: a node that has lost its state directory has a new key.
	ErrKey = errors.New("the key is not that of the source node")
)

// errEnded is why a stream is ended by its own side. To ask for it again is of no use, all the
// less as the node may be about to go.
var errEnded = fmt.Errorf("%w: the lease has ended", volume.ErrNotFound)

// maxText bounds how much of another node's text is repeated, in characters.
const maxText = 512

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBroken, fmt.Sprintf(format, args...))
}

// errorCodes are what both sides make of each other's errors; of those with one code the client
// makes the first.
var errorCodes = []struct {
	err  error
	code streampb.Code
}{
	{volume.ErrNotFound, streampb.Code_CODE_NOT_FOUND},
	{volume.ErrFenced, streampb.Code_CODE_FENCED},
	{volume.ErrInvalid, streampb.Code_CODE_INVALID},
	{volume.ErrUnavailable, streampb.Code_CODE_UNAVAILABLE},
	{volume.ErrBusy, streampb.Code_CODE_UNAVAILABLE},
	{context.Canceled, streampb.Code_CODE_UNAVAILABLE},
	{context.DeadlineExceeded, streampb.Code_CODE_UNAVAILABLE},
	{errToken, streampb.Code_CODE_UNAUTHENTICATED},
}

// endOf is the answer to a call that ends with err.
func endOf(err error) *streampb.End {
	if err == nil {
		return &streampb.End{Code: streampb.Code_CODE_OK}
	}
	for _, m := range errorCodes {
		if errors.Is(err, m.err) {
			return &streampb.End{Code: m.code, Text: strings.ToValidUTF8(fmt.Sprintf("%.*s", maxText, err.Error()), "?")}
		}
	}
	return &streampb.End{Code: streampb.Code_CODE_INTERNAL, Text: "the cache cannot be read; see the log of the source node"}
}

// errorOf reads such an answer. The text is another node's.
func errorOf(end *streampb.End) error {
	if end.GetCode() == streampb.Code_CODE_OK {
		return nil
	}
	kind := ErrBroken
	for _, m := range errorCodes {
		if m.code == end.GetCode() {
			kind = m.err
			break
		}
	}
	if errors.Is(kind, errToken) {
		kind = volume.ErrUnavailable // there may be another one soon
	}
	return fmt.Errorf("%w: %s: %.*q", kind, strings.ToLower(strings.TrimPrefix(end.GetCode().String(), "CODE_")), maxText, end.GetText())
}
