package doccommands

import (
	"regexp"
	"strings"
)

// block is a piece of code in a document.
type block struct {
	// line is the number of its first line, from 1.
	line int
	// info is the word after the fence: empty without one, "indented" for blocks that
	// are indented, "span" for code in the text.
	info string
	text string
}

const (
	infoIndented = "indented"
	infoSpan     = "span"
)

var (
	fencePattern = regexp.MustCompile("^ *```+ *([a-z]*)")
	spanPattern  = regexp.MustCompile("`([^`]+)`")
)

// blocks returns the code of a document. Indented code is cut at empty lines: what a
// command prints commonly follows it after one.
func blocks(text string) []block {
	var found []block
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		if m := fencePattern.FindStringSubmatch(lines[i]); m != nil {
			end := i + 1
			for end < len(lines) && !fencePattern.MatchString(lines[end]) {
				end++
			}
			found = append(found, block{line: i + 2, info: m[1], text: unindent(lines[i+1 : end])})
			i = end
			continue
		}
		if isCode(lines[i]) && (i == 0 || blank(lines[i-1]) || isCode(lines[i-1])) {
			end := i + 1
			for end < len(lines) && (isCode(lines[end]) || heredocOpen(lines[i:end])) {
				end++
			}
			found = append(found, block{line: i + 1, info: infoIndented, text: unindent(lines[i:end])})
			i = end - 1
			continue
		}
		for _, m := range spanPattern.FindAllStringSubmatch(lines[i], -1) {
			found = append(found, block{line: i + 1, info: infoSpan, text: m[1]})
		}
	}
	return found
}

// isCode says whether a line is indented as code is.
func isCode(line string) bool { return strings.HasPrefix(line, "    ") && !blank(line) }

func blank(line string) bool { return strings.TrimSpace(line) == "" }

var heredocPattern = regexp.MustCompile(`<<-?\s*'?([A-Z]+)'?`)

// heredocOpen says whether the lines begin a here-document that they do not end.
func heredocOpen(lines []string) bool {
	open := ""
	for _, line := range lines {
		if open != "" {
			if strings.TrimSpace(line) == open {
				open = ""
			}
			continue
		}
		if m := heredocPattern.FindStringSubmatch(line); m != nil {
			open = m[1]
		}
	}
	return open != ""
}

// unindent takes away what all lines are indented by.
func unindent(lines []string) string {
	least := -1
	for _, line := range lines {
		if n := len(line) - len(strings.TrimLeft(line, " ")); !blank(line) && (least < 0 || n < least) {
			least = n
		}
	}
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = line[min(max(least, 0), len(line)):]
	}
	return strings.Join(out, "\n") + "\n"
}
