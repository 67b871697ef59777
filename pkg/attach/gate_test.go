package attach_test

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// gate ends a process between two steps: whatever it calls from then on never returns.
type gate struct {
	mu sync.Mutex
	// journal is its file, and said what that said at the last step: before a change it is
	// as after the last one, unless the journal has been written.
	journal, said string
	left          int
	// last is a step that the process ends at, whichever it is of them, "" for none.
	last string
	// making are the changes that are under way.
	making int
	// at is the step that it ended at, of which dead tells.
	at   string
	dead chan struct{}
}

func (g *gate) step(what string) {
	g.mu.Lock()
	if g.at == "" && g.left > 0 && g.counts(what) {
		if g.left--; g.left == 0 {
			g.at = what
			close(g.dead)
		}
	}
	if g.at == "" && g.last == what {
		g.at = what
		close(g.dead)
	}
	ended := g.at != ""
	switch {
	case strings.HasPrefix(what, "after"):
		g.making--
	case strings.HasPrefix(what, "before") && !ended:
		g.making++
	}
	g.mu.Unlock()
	if ended {
		select {}
	}
}

// replaced is where a process ends whose node, or whose successor, does not wait for a step.
const replaced = "anywhere"

// end ends a process wherever it is, also one that answers another node just now.
func (g *gate) end() {
	g.mu.Lock()
	if g.at == "" {
		g.at = replaced
		close(g.dead)
	}
	g.mu.Unlock()
	g.settle()
}

// settle waits for what a process that ended had begun to change: the kernel does what it was
// asked before it lets a process go. What waits for a path that is lost is left behind.
func (g *gate) settle() {
	for range 10_000 {
		g.mu.Lock()
		making := g.making
		g.mu.Unlock()
		if making == 0 {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// counts reports whether something is different from the last step that counted.
func (g *gate) counts(what string) bool {
	if strings.HasPrefix(what, "look") {
		return false
	}
	now, _ := os.ReadFile(g.journal) // there may be none
	same := string(now) == g.said
	g.said = string(now)
	return strings.HasPrefix(what, "after") || !same
}

// waiting are the stacks of this moment, but those of processes that ended.
func waiting() string {
	buf := make([]byte, 64<<20)
	buf = buf[:runtime.Stack(buf, true)]
	all := strings.Split(string(buf), "\n\n")
	return strings.Join(slices.DeleteFunc(all, func(s string) bool {
		head, _, _ := strings.Cut(s, "\n")
		return strings.Contains(head, "select (no cases)") || strings.Contains(head, "testing.(*T)") || !strings.Contains(s, "pkg/attach")
	}), "\n\n")
}
