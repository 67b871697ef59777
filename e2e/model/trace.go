package model

import (
	"fmt"
	"strconv"
	"strings"
)

// times separates a number from an event that happens as often.
const times = " x "

// folded writes what happens several times in a row once, with its number.
func folded(trace []string) []string {
	var out []string
	for i := 0; i < len(trace); {
		n := 1
		for i+n < len(trace) && trace[i+n] == trace[i] {
			n++
		}
		line := trace[i]
		if n > 1 {
			line = strconv.Itoa(n) + times + line
		}
		out = append(out, line)
		i += n
	}
	return out
}

// unfolded is the inverse of folded.
func unfolded(trace []string) []string {
	var out []string
	for _, line := range trace {
		n := 1
		if number, name, several := strings.Cut(line, times); several {
			if k, err := strconv.Atoi(number); err == nil {
				n, line = k, name
			}
		}
		for range n {
			out = append(out, line)
		}
	}
	return out
}

// behind is the world behind the steps to a pod that runs.
func behind[W comparable](w W, events []eventOf[W], trace []string) W {
	violation, refused, last := replay(w, events, trace)
	if violation != "" || refused != "" {
		panic("no pod comes to run: " + violation + refused)
	}
	return last
}

// replay lets the events of a trace happen one after the other. It ends at the first that
// cannot, and says which one that is, or at a violation.
func replay[W comparable](w W, events []eventOf[W], trace []string) (violation, refused string, last W) {
	for i, name := range unfolded(trace) {
		violation, ok := find(events, name).apply(&w)
		if violation != "" {
			return violation, "", w
		}
		if !ok {
			return "", fmt.Sprintf("%d: %s", i+1, name), w
		}
	}
	return "", "", w
}

func find[W comparable](events []eventOf[W], name string) eventOf[W] {
	for _, e := range events {
		if e.name == name {
			return e
		}
	}
	panic("no event is called " + name)
}
