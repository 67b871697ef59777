package doccommands

import (
	"fmt"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Script is what one block of a document gives the reader to type.
type Script struct {
	// Line is the number of its first line, from 1.
	Line int
	// Commands are its statements, without comments and prompts.
	Commands []string
}

// Scripts returns what a document gives to type. Spans of its text are left out: they
// name commands more than they ask for them.
func Scripts(text string) ([]Script, error) {
	var found []Script
	var c Checker
	for _, b := range blocks(text) {
		if !c.isScript(b) {
			continue
		}
		commands, err := statements(typed(b.text))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", b.line, err)
		}
		found = append(found, Script{Line: b.line, Commands: commands})
	}
	return found, nil
}

// statements are the statements of a script as the shell's own syntax writes them.
func statements(script string) ([]string, error) {
	file, err := parseShell(script)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, stmt := range file.Stmts {
		var text strings.Builder
		if err := syntax.NewPrinter().Print(&text, stmt); err != nil {
			return nil, err
		}
		found = append(found, strings.TrimSpace(text.String()))
	}
	return found, nil
}
