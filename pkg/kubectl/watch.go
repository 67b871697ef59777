package kubectl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// The smallest interval keeps a forgotten screen from loading the API server.
const (
	defaultInterval = 5 * time.Second
	minInterval     = time.Second
)

// clearScreen moves the cursor home and clears what is below (ECMA-48).
const clearScreen = "\x1b[H\x1b[2J"

// watching are the flags of commands that can show their table again and again.
type watching struct {
	watch    bool
	interval time.Duration
	// notes are what has been said about the table that is being made.
	notes []string
}

func (w *watching) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&w.watch, "watch", "w", false, "Show it again and again.")
	cmd.Flags().DurationVar(&w.interval, "interval", defaultInterval, "With --watch: the time between two looks.")
}

func (w *watching) validate(o *output) error {
	switch {
	case w.interval < minInterval:
		return fmt.Errorf("--interval %s is too short: give at least %s", w.interval, minInterval)
	case w.watch && !o.table():
		return errors.New("--watch prints tables: leave out --watch, or -o")
	}
	return nil
}

// repeat prints what once prints, again and again if that is wanted, until ctx
// ends.
func (w *watching) repeat(ctx context.Context, f *Factory, once func(context.Context, io.Writer) error) error {
	if !w.watch {
		return once(ctx, f.Out)
	}
	for {
		// The screen is cleared only when the new table is there.
		var text strings.Builder
		if err := once(ctx, &text); err != nil {
			if ctx.Err() != nil {
				return nil // who watches has seen enough
			}
			return err
		}
		if err := w.redraw(f, text.String()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-f.Clock.After(w.interval):
		}
	}
}

// note says a line about the table on standard error: after it, where the table would clear the
// screen.
func (w *watching) note(f *Factory, line string) error {
	if w.watch {
		w.notes = append(w.notes, line)
		return nil
	}
	_, err := fmt.Fprintln(f.ErrOut, line)
	return err
}

func (w *watching) redraw(f *Factory, text string) error {
	head := fmt.Sprintf("Every %s: %s\n\n", w.interval, f.Clock.Now().UTC().Format(time.TimeOnly+" UTC"))
	if f.Terminal {
		text = clearScreen + head + text
	} else {
		text = head + text + "\n"
	}
	if _, err := fmt.Fprint(f.Out, text); err != nil {
		return err
	}
	for _, line := range w.notes {
		if _, err := fmt.Fprintln(f.ErrOut, line); err != nil {
			return err
		}
	}
	w.notes = nil
	return nil
}
