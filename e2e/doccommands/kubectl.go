package doccommands

import (
	"regexp"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// resourceVerbs are the commands of kubectl whose first word names a resource.
var resourceVerbs = []string{"get", "describe", "delete", "patch", "wait", "label", "annotate", "edit"}

// builtin are the resources of Kubernetes that documents use.
var builtin = map[string]schema.GroupVersionKind{
	"csidriver": {}, "csinode": {}, "csinodes": {}, "daemonset": {}, "deployment": {}, "events": {}, "lease": {}, "leases": {}, "namespace": {}, "node": {}, "nodes": {},
	"pod": {Version: "v1", Kind: "Pod"}, "pods": {Version: "v1", Kind: "Pod"}, "secret": {}, "configmap": {}, "configmaps": {}, "storageclass": {}, "storageclasses": {}, "sc": {},
	"pv": {Version: "v1", Kind: "PersistentVolume"}, "persistentvolume": {Version: "v1", Kind: "PersistentVolume"},
	"pvc": {Version: "v1", Kind: "PersistentVolumeClaim"}, "persistentvolumeclaim": {Version: "v1", Kind: "PersistentVolumeClaim"},
	"volumesnapshot": {}, "volumegroupsnapshot": {}, "volumeattachments": {}, "volumeattributesclass": {}, "volumeattributesclasses": {}, "crd": {}, "clusterrolebinding": {},
}

// kubectl checks a call of kubectl, or of the plugin.
func (c *Checker) kubectl(cmd command) {
	args := cmd.args[1:]
	if len(args) == 0 {
		return
	}
	if args[0] == "nearflash" {
		c.plugin(args[1:])
		return
	}
	words := leadingWords(args)
	h, err := c.ask(c.Kubectl, words[0])
	if err != nil {
		c.problem("kubectl has no command %q", words[0])
		return
	}
	path := words[:1]
	for len(path) < len(words) && strings.Contains(h.text, "Available Commands:") {
		path = words[:len(path)+1]
		// Of a command that it does not know kubectl shows the help of the one above.
		if h, err = c.ask(c.Kubectl, path...); err != nil || !strings.Contains(h.text, "  kubectl "+strings.Join(path, " ")+" ") {
			c.problem("kubectl has no command %q", strings.Join(path, " "))
			return
		}
	}
	global, err := c.ask(c.Kubectl, globalOptions...)
	if err != nil {
		c.problem("%v", err)
		return
	}
	known := map[string]bool{}
	for _, flags := range []map[string]bool{global.flags, h.flags} {
		for name, takes := range flags {
			known[name] = takes
		}
	}
	p := c.parse("kubectl "+strings.Join(path, " "), args[len(path):], known)
	if slices.Contains(resourceVerbs, path[0]) {
		c.resources(p)
	}
	if len(p.after) > 0 {
		c.command(command{args: p.after})
	}
	if cmd.stdin != "" {
		c.yaml(cmd.stdin)
	}
	for _, container := range p.all("-c", "--container") {
		if strings.HasPrefix(container, "nearflash-") && !strings.Contains(c.facts.rendered, "name: "+container+"\n") {
			c.problem("the chart has no container %q", container)
		}
	}
}

// leadingWords are the words before the first flag.
func leadingWords(args []string) []string {
	for i, arg := range args {
		if strings.HasPrefix(arg, "-") {
			return args[:max(i, 1)]
		}
	}
	return args
}

// resources checks the kinds that are named, and what is said of the project's own.
func (c *Checker) resources(p parsed) {
	if len(p.words) == 0 {
		return
	}
	words := p.words[:1]
	if strings.Contains(p.words[0], "/") {
		words = p.words
	}
	for _, word := range words {
		for name := range strings.SplitSeq(strings.ToLower(word), ",") {
			name, _, _ = strings.Cut(name, "/")
			crd := c.facts.resources[name]
			kind, known := builtin[name]
			if crd == nil && !known {
				c.problem("kubectl knows no resource %q", name)
				continue
			}
			if crd != nil {
				c.fields(crd, p)
				kind = schema.GroupVersionKind{Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Kind: crd.Spec.Names.Kind}
			}
			for _, patch := range p.all("-p", "--patch") {
				c.patch(kind, patch)
			}
		}
	}
}

var (
	jsonPathPattern = regexp.MustCompile(`\{([.@][^{}]*)\}`)
	stepPattern     = regexp.MustCompile(`^[a-zA-Z0-9]+`)
)

// fields checks selectors and paths of fields of one of the project's definitions.
func (c *Checker) fields(crd *apiextensionsv1.CustomResourceDefinition, p parsed) {
	version := crd.Spec.Versions[0]
	for _, selector := range p.all("--field-selector") {
		for term := range strings.SplitSeq(selector, ",") {
			field, _, _ := strings.Cut(term, "=")
			field = strings.TrimSuffix(field, "!")
			selectable := slices.ContainsFunc(version.SelectableFields, func(f apiextensionsv1.SelectableField) bool { return f.JSONPath == "."+field })
			if !selectable && field != "metadata.name" {
				c.problem("%s cannot be selected by %s", crd.Spec.Names.Plural, field)
			}
		}
	}
	for _, output := range p.all("-o", "--output") {
		text, ok := strings.CutPrefix(output, "jsonpath=")
		if !ok {
			continue
		}
		for _, m := range jsonPathPattern.FindAllStringSubmatch(text, -1) {
			if missing := missingStep(version.Schema.OpenAPIV3Schema, m[1]); missing != "" {
				c.problem("%s have no field %s (in %s)", crd.Spec.Names.Plural, missing, m[1])
			}
		}
	}
}

// missingStep follows a JSONPath down a schema, and returns how far it got with the
// first name that is not there; nothing if all are.
func missingStep(s *apiextensionsv1.JSONSchemaProps, path string) string {
	sofar := ""
	for step := range strings.SplitSeq(strings.TrimPrefix(path, "."), ".") {
		name := stepPattern.FindString(step)
		if sofar == "" && (name == "items" || name == "metadata") {
			if name == "metadata" {
				return ""
			}
			continue
		}
		sofar += "." + name
		if s.Type == "array" && s.Items != nil {
			s = s.Items.Schema
		}
		below, ok := s.Properties[name]
		if !ok {
			return sofar
		}
		s = &below
	}
	return ""
}
