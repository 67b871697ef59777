//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nearflash/nearflash/api/v1alpha1"
	"github.com/nearflash/nearflash/e2e/doccommands"
)

// watching is how long a command is let run that ends with Ctrl-C.
const watching = 15 * time.Second

// step is what is particular about a command of a document.
type step struct {
	// left is why it is not run here.
	left string
	// instead is typed in its place, because of why.
	instead, why string
	// on is the machine that it is typed on; empty is the administrator's.
	on string
	// watch is set for a command that goes on until it is interrupted.
	watch bool
	// before and after are what the text asks for around it.
	before, after func(ctx context.Context)
}

// walk follows a document as its reader would: it runs the commands in their order,
// and each of them must succeed.
type walk struct {
	// path is the document's, from the root of the checkout.
	path string
	s    *space
	// words are what a reader puts in the place of the document's examples: patterns
	// in the order in which they are applied.
	words []word
	// steps are of the commands that begin so.
	steps map[string]step

	dir string
	// used are the steps that were taken, typed the commands of the document so far with
	// what they printed.
	used  map[string]bool
	typed []typed
}

type typed struct{ command, output string }

type word struct{ example, real string }

// usual are the words of an administrator of this cluster.
func usual() []word {
	return []word{
		{`go run \./hack/lab\b`, k.LabCommand},
		{`(-n|--namespace) nearflash\b`, "$1 " + k.Namespace},
		{`\bCHART\b`, chart()},
		{`\bOTHER-NODE\b`, nodeB}, {`\bNODE\b`, nodeA},
	}
}

// words are the usual ones and those for the claim of a volume.
func (v *vol) words() []word {
	return append(usual(), word{`\b(shop|NAMESPACE)\b`, v.space.name}, word{`\bCLAIM\b`, v.claim}, word{`\bVOLUME\b`, v.Handle})
}

// follow runs the document.
func (w *walk) follow(ctx context.Context) {
	GinkgoHelper()
	w.prepare(ctx)
	scripts, err := scriptsOf(w.path)
	Expect(err).NotTo(HaveOccurred(), w.path)
	Expect(scripts).NotTo(BeEmpty(), "%s has no commands", w.path)
	w.used = map[string]bool{}
	for _, script := range scripts {
		for _, command := range script.Commands {
			w.take(ctx, script.Line, command)
		}
	}
	for _, beginning := range slices.Sorted(maps.Keys(w.steps)) {
		Expect(w.used).To(HaveKey(beginning), "no command of %s begins so", w.path)
	}
}

// prepare makes the reader's machine: a folder of its own, the plugin on the PATH, and
// the space as the namespace that is meant when none is named.
func (w *walk) prepare(ctx context.Context) {
	GinkgoHelper()
	w.dir = GinkgoT().TempDir()
	Expect(os.Mkdir(filepath.Join(w.dir, "bin"), 0o755)).To(Succeed())
	Expect(os.Symlink(os.Getenv(pluginVariable), filepath.Join(w.dir, "bin", "kubectl-nearflash"))).To(Succeed())
	Expect(os.Symlink(filepath.Join(checkout(), "deploy"), filepath.Join(w.dir, "deploy"))).To(Succeed())
	raw, err := exec.CommandContext(ctx, "kubectl", "config", "view", "--raw").Output()
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(w.kubeconfig(), raw, 0o600)).To(Succeed())
	if w.s != nil {
		w.mustType(ctx, "kubectl config set-context --current --namespace="+w.s.name)
	}
}

func (w *walk) kubeconfig() string { return filepath.Join(w.dir, "kubeconfig") }

// take runs a command of the document, or what its step says.
func (w *walk) take(ctx context.Context, line int, command string) {
	GinkgoHelper()
	var st step
	longest := ""
	for beginning, s := range w.steps {
		if strings.HasPrefix(command, beginning) && len(beginning) >= len(longest) {
			longest, st = beginning, s
		}
	}
	w.used[longest] = true
	where := fmt.Sprintf("%s:%d: ", w.path, line)
	if st.left != "" {
		By(where + "not run, " + st.left + ": " + command)
		return
	}
	if st.before != nil {
		st.before(ctx)
	}
	original := command
	if st.instead != "" {
		command = st.instead
	}
	if By(where + w.worded(command)); st.why != "" {
		By("(instead of " + original + ": " + st.why + ")")
	}
	output := ""
	switch {
	case st.on != "":
		var err error
		output, err = k.Host.Run(ctx, st.on, "set -euo pipefail\n"+w.worded(command))
		Expect(err).NotTo(HaveOccurred(), "%s%s", where, command)
		GinkgoWriter.Println(output)
	case st.watch:
		short, cancel := context.WithTimeout(ctx, watching)
		defer cancel()
		var err error
		output, err = w.command(short, command)
		Expect(output).NotTo(BeEmpty(), "%s%s shows nothing: %v", where, command, err)
	default:
		output = w.mustType(ctx, command)
	}
	w.typed = append(w.typed, typed{original, output})
	if st.after != nil {
		st.after(ctx)
	}
}

// worded is a command with the reader's own words.
func (w *walk) worded(command string) string {
	for _, word := range w.words {
		command = regexp.MustCompile(word.example).ReplaceAllString(command, word.real)
	}
	return command
}

// last is the last command that was typed that begins so.
func (w *walk) last(beginning string) typed {
	GinkgoHelper()
	for _, t := range slices.Backward(w.typed) {
		if strings.HasPrefix(t.command, beginning) {
			return t
		}
	}
	Fail(w.path + " had no command yet that begins with " + beginning)
	return typed{}
}

// again runs a command of the document once more, shown is what it printed.
func (w *walk) again(ctx context.Context, beginning string) string {
	GinkgoHelper()
	return w.mustType(ctx, w.last(beginning).command)
}

func (w *walk) shown(beginning string) string {
	GinkgoHelper()
	return strings.TrimSpace(w.last(beginning).output)
}

// mustType runs a command of the reader, and returns what it prints.
func (w *walk) mustType(ctx context.Context, command string) string {
	GinkgoHelper()
	out, err := w.command(ctx, command)
	Expect(err).NotTo(HaveOccurred(), "%s: %s\n%s", w.path, command, out)
	return out
}

func (w *walk) command(ctx context.Context, command string) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", w.worded(command))
	cmd.Dir = w.dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.kubeconfig(), "PATH="+filepath.Join(w.dir, "bin")+":"+os.Getenv("PATH"))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = watching
	out, err := cmd.CombinedOutput()
	GinkgoWriter.Println(string(out))
	return string(out), err
}

// adopt makes a claim that a document has made one of the space.
func (s *space) adopt(ctx context.Context, claim string) *vol {
	GinkgoHelper()
	v := &vol{space: s, claim: claim}
	Expect(s.awaitBound(ctx, v)).To(Succeed())
	return v
}

// inUse makes a volume, and a pod that uses it on node A.
func (s *space) inUse(ctx context.Context, name string, mode v1alpha1.CacheMode) *vol {
	GinkgoHelper()
	v, err := s.volume(ctx, volumeSpec{name: name, mode: mode, kind: ext4, cacheSize: "64Mi"})
	Expect(err).NotTo(HaveOccurred())
	Expect(v.start(ctx, nodeA)).To(Succeed())
	return v
}

// checkout is the root of the source tree.
func checkout() string { return filepath.Join(chart(), "..", "..", "..") }

// scriptsOf are the commands of a document, by its path from the root of the checkout.
func scriptsOf(path string) ([]doccommands.Script, error) {
	text, err := os.ReadFile(filepath.Join(checkout(), path))
	if err != nil {
		return nil, err
	}
	return doccommands.Scripts(string(text))
}

// documents are those that have commands, from the root of the checkout.
func documents() []string {
	GinkgoHelper()
	found := []string{"README.md"}
	Expect(fs.WalkDir(os.DirFS(checkout()), "docs", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		scripts, err := scriptsOf(path)
		if len(scripts) > 0 {
			found = append(found, path)
		}
		return err
	})).To(Succeed())
	return found
}
