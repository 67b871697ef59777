package doccommands

import (
	"fmt"
	"io"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// command is one simple command of a shell script.
type command struct {
	// env are the variables set for it alone.
	env map[string]string
	// args are its words, the program first, without their quotes.
	args []string
	// stdin is the here-document that it reads.
	stdin string
}

func parseShell(script string) (*syntax.File, error) {
	return syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(script), "")
}

// commands parses a script.
func commands(script string) ([]command, error) {
	file, err := parseShell(script)
	if err != nil {
		return nil, err
	}
	var found []command
	var failed error
	syntax.Walk(file, func(node syntax.Node) bool {
		stmt, ok := node.(*syntax.Stmt)
		if !ok {
			return true
		}
		call, ok := stmt.Cmd.(*syntax.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		c, err := simple(stmt, call)
		if err != nil && failed == nil {
			failed = err
		}
		found = append(found, c)
		return true
	})
	return found, failed
}

func simple(stmt *syntax.Stmt, call *syntax.CallExpr) (command, error) {
	c := command{env: map[string]string{}}
	for _, a := range call.Assigns {
		value := ""
		if a.Value != nil {
			var err error
			if value, err = literal(a.Value); err != nil {
				return c, err
			}
		}
		c.env[a.Name.Value] = value
	}
	for _, word := range call.Args {
		text, err := literal(word)
		if err != nil {
			return c, err
		}
		c.args = append(c.args, text)
	}
	for _, r := range stmt.Redirs {
		if r.Hdoc != nil {
			text, err := literal(r.Hdoc)
			if err != nil {
				return c, err
			}
			c.stdin = text
		}
	}
	return c, nil
}

// literal returns a word without its quotes; what the shell would put in for
// variables and commands stays as a name.
func literal(word *syntax.Word) (string, error) {
	config := &expand.Config{
		Env: expand.FuncEnviron(func(name string) string { return "$" + name }),
		CmdSubst: func(w io.Writer, _ *syntax.CmdSubst) error {
			_, err := io.WriteString(w, "$(command)")
			return err
		},
	}
	text, err := expand.Literal(config, word)
	if err != nil {
		return "", fmt.Errorf("word at %s: %w", word.Pos(), err)
	}
	return text, nil
}
