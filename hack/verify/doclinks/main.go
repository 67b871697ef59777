// Command doclinks checks the links between Markdown files: a relative link must
// lead to a file of the project, and its fragment to a heading there.
//
//	go run ./hack/verify/doclinks FILE.md...
package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
)

func main() {
	problems, err := check(os.DirFS("."), os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "doclinks:", err)
		os.Exit(2)
	}
	for _, p := range problems {
		fmt.Println(p)
	}
	if len(problems) > 0 {
		os.Exit(1)
	}
}

var (
	linkPattern    = regexp.MustCompile(`\]\(<?([^()\s<>]+)>?(?:\s+"[^"]*")?\)`)
	codePattern    = regexp.MustCompile("`[^`]*`")
	headingPattern = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*$`)
	schemePattern  = regexp.MustCompile(`^[a-z][a-z0-9+.-]*:`)
)

// check returns a line for every link of the files that leads nowhere.
func check(tree fs.FS, files []string) ([]string, error) {
	var problems []string
	for _, file := range files {
		text, err := fs.ReadFile(tree, filepath.ToSlash(filepath.Clean(file)))
		if err != nil {
			return nil, err
		}
		for n, line := range prose(string(text)) {
			for _, m := range linkPattern.FindAllStringSubmatch(codePattern.ReplaceAllString(line, ""), -1) {
				if why := follow(tree, file, m[1]); why != "" {
					problems = append(problems, fmt.Sprintf("%s:%d: %s: %s", file, n+1, m[1], why))
				}
			}
		}
	}
	return problems, nil
}

// prose returns the lines of a file with those of code blocks emptied.
func prose(text string) []string {
	lines := strings.Split(text, "\n")
	fenced := false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			fenced = !fenced
		}
		if fenced || fence {
			lines[i] = ""
		}
	}
	return lines
}

// follow says what is wrong with a link; nothing if it leads somewhere or away.
func follow(tree fs.FS, from, link string) string {
	if schemePattern.MatchString(link) {
		return ""
	}
	path, fragment, _ := strings.Cut(link, "#")
	target := filepath.ToSlash(filepath.Clean(from))
	if path != "" {
		target = filepath.ToSlash(filepath.Join(filepath.Dir(from), path))
	}
	if !fs.ValidPath(target) {
		return "leads out of the project"
	}
	info, err := fs.Stat(tree, target)
	if err != nil {
		return "no such file"
	}
	if fragment == "" || info.IsDir() || !strings.HasSuffix(target, ".md") {
		return ""
	}
	text, err := fs.ReadFile(tree, target)
	if err != nil {
		return err.Error()
	}
	if !anchors(string(text))[fragment] {
		return "no such heading"
	}
	return ""
}

// anchors returns what GitHub names the headings of a file: lower case, blanks to
// hyphens, punctuation dropped, repeated ones numbered.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	times := map[string]int{}
	for _, line := range prose(text) {
		m := headingPattern.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])
		if n := times[name]; n > 0 {
			found[fmt.Sprintf("%s-%d", name, n)] = true
		} else {
			found[name] = true
		}
		times[name]++
	}
	return found
}
