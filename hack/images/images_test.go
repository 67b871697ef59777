package images

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/modfile"
)

// stage is one FROM of the Dockerfile.
type stage struct {
	from  string
	lines []string
}

// readStages parses the Dockerfile: instructions with their continuations.
func readStages(t *testing.T) (stages map[string]stage, head []string) {
	t.Helper()
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	stages = map[string]stage{}
	name := ""
	for line := range strings.Lines(regexp.MustCompile(`\\\n\s*`).ReplaceAllString(string(text), "")) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if m := regexp.MustCompile(`^FROM (\S+) AS (\S+)$`).FindStringSubmatch(line); m != nil {
			name = m[2]
			stages[name] = stage{from: m[1]}
			continue
		}
		if name == "" {
			head = append(head, line)
			continue
		}
		s := stages[name]
		s.lines = append(s.lines, line)
		stages[name] = s
	}
	return stages, head
}

// TestDockerfile wants of the Dockerfile what All says of the images, and nothing else
// in them.
func TestDockerfile(t *testing.T) {
	stages, _ := readStages(t)
	got := map[string]stage{}
	for name, s := range stages {
		if name != "build" && name != "node-tools" {
			got[name] = s
		}
	}
	want := map[string]stage{}
	for _, image := range All() {
		s := stage{from: "scratch", lines: []string{fmt.Sprintf("COPY --from=build /out/%s /%[1]s", image.Name)}}
		if image.HostTools {
			s.from = "node-tools"
		}
		if image.User != "" {
			s.lines = append(s.lines, "USER "+image.User)
		}
		s.lines = append(s.lines, fmt.Sprintf("ENTRYPOINT [%q]", "/"+image.Name))
		want[image.Name] = s
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(stage{})); diff != "" {
		t.Errorf("stages (-images.go +Dockerfile):\n%s", diff)
	}
}

// TestDockerfilePackages wants the packages to come from the one list, and the two
// base images to be those that the other way uses.
func TestDockerfilePackages(t *testing.T) {
	stages, head := readStages(t)
	if !slices.Contains(head, "ARG DEBIAN_IMAGE=debian:"+Suite+"-slim") {
		t.Errorf("%q: want Debian %s", head, Suite)
	}
	text, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := modfile.ParseLax("go.mod", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	language := strings.TrimSuffix(mod.Go.Version, ".0")
	if !slices.Contains(head, "ARG GO_IMAGE=golang:"+language) {
		t.Errorf("%q: want Go %s", head, language)
	}
	tools := strings.Join(stages["node-tools"].lines, "\n")
	for _, want := range []string{"COPY hack/images/node-tools.packages /tmp/", "xargs -a /tmp/node-tools.packages apt-get install"} {
		if !strings.Contains(tools, want) {
			t.Errorf("the stage node-tools lacks %q:\n%s", want, tools)
		}
	}
	for _, name := range NodeTools() {
		if regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `( |$)`).MatchString(strings.ReplaceAll(tools, "node-tools", "")) {
			t.Errorf("the stage node-tools names the package %s itself", name)
		}
	}
	build := strings.Join(stages["build"].lines, "\n")
	for _, image := range All() {
		if !strings.Contains(build, "./cmd/"+image.Name) {
			t.Errorf("the stage build does not build %s", image.Name)
		}
	}
}

func TestNodeTools(t *testing.T) {
	packages := NodeTools()
	if len(packages) < 5 || !slices.IsSorted(packages) || len(slices.Compact(slices.Clone(packages))) != len(packages) {
		t.Errorf("%q: want a sorted list without doubles", packages)
	}
}
