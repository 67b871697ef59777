// Package httpserve runs HTTP servers that end with a context: those of probes, metrics and figures.
package httpserve

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"strings"
)

// Run serves at listener until ctx ends, and then returns nil; requests may fail while the process
// stops. It closes the listener. Requests have the logger of ctx.
func Run(ctx context.Context, listener net.Listener, s *http.Server) error {
	s.BaseContext = func(net.Listener) context.Context { return ctx }
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ErrorLog is a server's log of what clients do wrong, each of which tell gets as a line.
func ErrorLog(tell func(reason string)) *log.Logger { return log.New(lines(tell), "", 0) }

type lines func(string)

// Write implements io.Writer.
func (tell lines) Write(p []byte) (int, error) {
	tell(strings.TrimSpace(string(p)))
	return len(p), nil
}
