package passes

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestRepeat: an error is told when it is another one than that of the pass before, and not
// when the work has ended.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		passes := []string{"", "a", "a", "b", "a", "", "a", "end"}
		began, done := time.Now(), 0
		var told []string
		Repeat(ctx, time.Minute, func(context.Context) error {
			text := passes[done]
			done++
			switch text {
			case "":
				return nil
			case "end":
				cancel()
			}
			return errors.New(text)
		}, func(err error) { told = append(told, err.Error()) })
		if want := []string{"a", "b", "a", "a"}; !slices.Equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}
		if took := time.Since(began); done != len(passes) || took != 7*time.Minute {
			t.Errorf("%d passes in %s", done, took)
		}
	})
}

// TestPaced: the pause is that of the pass before, and errors are told as by Repeat.
func TestPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began, done := time.Now(), 0
		var told []string
		Paced(ctx, func(context.Context) (time.Duration, error) {
			if done++; done == 4 {
				cancel()
			}
			return time.Duration(done) * time.Minute, errors.New(map[bool]string{true: "a", false: "b"}[done < 3])
		}, func(err error) { told = append(told, err.Error()) })
		if want := []string{"a", "b"}; !slices.Equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}
		if took := time.Since(began); done != 4 || took != 6*time.Minute {
			t.Errorf("%d passes in %s", done, took)
		}
	})
}
