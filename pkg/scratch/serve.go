package scratch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"k8s.io/klog/v2"

	"github.com/nearflash/nearflash/pkg/figures"
)

// Path is what is asked for at the socket of the figures.
const Path = "/scratch"

// Lender makes scratch volumes; attach.Attacher is one.
type Lender interface {
	// LendScratch makes one of at most so many bytes. back takes it back, and is called once. Errors
	// say why there is none.
	LendScratch(ctx context.Context, bytes int64) (d Device, back func(context.Context) error, err error)
}

// Handler lends a scratch volume to who asks, until the connection ends or the server does.
func Handler(l Lender) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		log := klog.FromContext(r.Context())
		bytes, err := strconv.ParseInt(r.URL.Query().Get("bytes"), 10, 64)
		if err != nil || bytes <= 0 {
			http.Error(w, fmt.Sprintf("bytes %q: accepted is a number of bytes", r.URL.Query().Get("bytes")), http.StatusBadRequest)
			return
		}
		// Making it may take as long as LVM takes, and measuring longer than other answers.
		if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil {
			log.Error(err, "The time of an answer cannot be set")
		}
		d, back, err := l.LendScratch(r.Context(), bytes)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer func() {
			if err := back(context.WithoutCancel(r.Context())); err != nil {
				log.Error(err, "Scratch volume is removed later")
			}
		}()
		w.Header().Set("Content-Type", "application/json")
		if err := errors.Join(json.NewEncoder(w).Encode(d), http.NewResponseController(w).Flush()); err != nil {
			log.Error(err, "Scratch volume is not lent")
			return
		}
		<-r.Context().Done()
	})
}

// Borrow asks the plugin that serves at a socket for a scratch volume. It is lent until back is called.
func Borrow(ctx context.Context, socket string, bytes int64) (d Device, back func(), err error) {
	resp, err := figures.Call(ctx, socket, http.MethodPost, fmt.Sprintf("%s?bytes=%d", Path, bytes))
	if err != nil {
		return Device{}, nil, err
	}
	back = func() { _ = resp.Body.Close() }
	if resp.StatusCode != http.StatusOK {
		defer back()
		return Device{}, nil, errors.New(figures.Refusal(resp))
	}
	line, err := bufio.NewReader(resp.Body).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &d)
	}
	if err != nil {
		back()
		return Device{}, nil, fmt.Errorf("read the plugin's answer: %w", err)
	}
	return d, back, nil
}
