package doccommands

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/nearflash/nearflash/pkg/driver"
	"github.com/nearflash/nearflash/pkg/target"
)

// looksLikeValues says whether text begins with a key of the chart's values.
func (c *Checker) looksLikeValues(text string) bool {
	key, rest, found := strings.Cut(text, ":")
	_, known := c.facts.values[key]
	return found && known && strings.HasPrefix(rest, "\n")
}

// yaml checks documents: objects of Kubernetes, values of the chart, or the configuration of a
// storage server. Other YAML has
// to be YAML.
func (c *Checker) yaml(text string) {
	for document := range strings.SplitSeq("\n"+text, "\n---") {
		if blank(document) {
			continue
		}
		var content any
		if err := yaml.UnmarshalStrict([]byte(document), &content); err != nil {
			c.problem("no YAML: %v", err)
			continue
		}
		object, ok := content.(map[string]any)
		if !ok {
			continue
		}
		version, _ := object["apiVersion"].(string)
		kind, _ := object["kind"].(string)
		switch {
		case version != "" && kind != "":
			c.object(schema.FromAPIVersionAndKind(version, kind), document)
		case c.areValues(object):
			c.values(document)
		case object["stateDir"] != nil:
			c.targetConfig(object)
		}
	}
}

const targetExample = "deploy/target/config.example.yaml"

// targetConfig checks a part of a storage server's configuration: the example with it.
func (c *Checker) targetConfig(part map[string]any) {
	example, err := c.read(targetExample)
	if err != nil {
		c.problem("%v", err)
		return
	}
	whole := map[string]any{}
	if err := yaml.Unmarshal([]byte(example), &whole); err != nil {
		c.problem("%s: %v", targetExample, err)
		return
	}
	maps.Copy(whole, part)
	text, err := yaml.Marshal(whole)
	if err != nil {
		c.problem("%v", err)
		return
	}
	if _, err := target.ParseConfig(text); err != nil {
		c.problem("nearflash-target refuses this: %v", err)
	}
}

// object decodes an object; unknown fields are errors.
func (c *Checker) object(kind schema.GroupVersionKind, text string) {
	into, err := c.facts.scheme.New(kind)
	if err != nil {
		c.problem("%s is not known: %v", kind, err)
		return
	}
	if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
		c.problem("%s: %v", kind.Kind, err)
		return
	}
	switch object := into.(type) {
	case *storagev1.StorageClass:
		if object.Provisioner == driver.Name {
			c.wrong(driver.CheckClass(object.Parameters))
		}
	case *storagev1.VolumeAttributesClass:
		if object.DriverName == driver.Name {
			c.wrong(driver.CheckMutable(object.Parameters))
		}
	case *snapshotv1.VolumeSnapshotClass:
		if object.Driver == driver.Name {
			c.wrong(driver.CheckSnapshotClass(object.Parameters))
		}
	case *corev1.PersistentVolume:
		if csi := object.Spec.CSI; csi != nil && csi.Driver == driver.Name {
			c.wrong(driver.CheckStatic(csi.VolumeAttributes))
		}
	}
}

func (c *Checker) wrong(err error) {
	if err != nil {
		c.problem("the driver refuses this: %v", err)
	}
}

// patch checks a merge patch of an object of a kind that is known.
func (c *Checker) patch(kind schema.GroupVersionKind, text string) {
	if kind.Kind == "" || strings.Contains(text, "$") {
		return
	}
	c.object(kind, text)
}

func (c *Checker) areValues(object map[string]any) bool {
	if len(object) == 0 {
		return false
	}
	for key := range object {
		if _, ok := c.facts.values[key]; !ok {
			return false
		}
	}
	return true
}

// values renders the chart with values. Classes need a storage server.
func (c *Checker) values(text string) {
	dir, err := os.MkdirTemp("", "doccommands-")
	if err != nil {
		c.problem("%v", err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "values.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		c.problem("%v", err)
		return
	}
	c.render("--set", "target.address=storage:9443", "--set", "target.tls.existingSecret=x", "--values", file)
}

// render lets helm render the chart.
func (c *Checker) render(args ...string) {
	args = append([]string{"template", "nearflash", filepath.Join(c.Root, chartDir), "--kube-version", "1.36.0"}, args...)
	if out, err := c.output(c.Helm, args...); err != nil {
		c.problem("helm refuses this: %s", out)
	}
}

// valueFlags are the flags of helm that give values and can be tried here: those that
// name files cannot.
var valueFlags = []string{"--set", "--set-string", "--set-json", "--set-literal", "--show-only"}

// helm checks a call of helm. One that names the chart is rendered with its values.
func (c *Checker) helm(cmd command) {
	args := cmd.args[1:]
	if len(args) == 0 {
		return
	}
	path := args[:1]
	if slices.Contains([]string{"get", "show"}, args[0]) && len(args) > 1 {
		path = args[:2]
	}
	h, err := c.ask(c.Helm, path...)
	if err != nil || !strings.Contains(h.text, "helm "+strings.Join(path, " ")) {
		c.problem("helm has no command %q (%v)", strings.Join(path, " "), err)
		return
	}
	p := c.parse("helm "+strings.Join(path, " "), args[len(path):], h.flags)
	if err := c.chart(p.words); err != nil {
		c.problem("%v", err)
	}
	if !slices.Contains([]string{"install", "upgrade", "template"}, args[0]) {
		return
	}
	var values []string
	for _, name := range valueFlags {
		for _, value := range p.all(name) {
			values = append(values, name, value)
		}
	}
	if len(values) > 0 {
		c.render(values...)
	}
}

// chart wants a chart where a word is a path of the tree.
func (c *Checker) chart(words []string) error {
	for _, word := range words {
		if !strings.HasPrefix(word, "deploy/") {
			continue
		}
		if _, err := c.stat(filepath.Join(word, "Chart.yaml")); err != nil {
			return errors.New("there is no chart in " + word)
		}
	}
	return nil
}
