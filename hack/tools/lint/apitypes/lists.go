package apitypes

import (
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// Lists checks that server-side apply knows how to merge a list, and that its
// elements can be told apart (ssatags, arrayofstruct).
var Lists = &analysis.Analyzer{
	Name: "apilists",
	Doc:  "API lists say how they are merged",
	Run: forFields(func(pass *analysis.Pass, d *declarations, f field) {
		s, ok := slice(f.typ)
		if !ok || f.inline || (f.in.list() && f.name == "Items") {
			return
		}
		if problem := d.list(f, s); problem != "" {
			pass.Reportf(f.pos, "field %s.%s: %s", f.in.name, f.name, problem)
		}
	}),
}

func (d *declarations) list(f field, s *types.Slice) string {
	kind, ok := f.markers.get("listType")
	_, structs := s.Elem().Underlying().(*types.Struct)
	switch {
	case !ok:
		return "listType is missing"
	case kind != "atomic" && kind != "set" && kind != "map":
		return "listType is none of atomic, set and map"
	case structs && kind == "set":
		return "a list of structs cannot be a set: use map or atomic"
	case !structs && kind == "map":
		return "listType=map is for lists of structs"
	case kind == "map" && !f.markers.has("listMapKey"):
		return "listMapKey is missing"
	}
	element := d.local(s.Elem())
	if element == nil {
		return ""
	}
	for _, e := range element.fields {
		if e.required() {
			return ""
		}
	}
	return "its elements have no required field, so that an empty one would be valid"
}

// Status checks what kubectl, controllers and users expect of a status (conditions,
// statusoptional, statussubresource).
var Status = &analysis.Analyzer{
	Name: "apistatus",
	Doc:  "API kinds have a status by the conventions",
	Run: func(pass *analysis.Pass) (any, error) {
		if !isAPI(pass) {
			return nil, nil
		}
		d := declared(pass)
		for _, s := range d.structs {
			for _, f := range s.fields {
				d.status(pass, s, f)
			}
		}
		return nil, nil
	},
}

func (d *declarations) status(pass *analysis.Pass, s *structure, f field) {
	if f.name == "Conditions" {
		if problem := conditions(f); problem != "" {
			pass.Reportf(f.pos, "field %s.%s: %s", s.name, f.name, problem)
		}
	}
	root, _ := s.markers.get("kubebuilder:object:root")
	if f.name != "Status" || root != "true" {
		return
	}
	if !s.markers.has("kubebuilder:subresource:status") {
		pass.Reportf(f.pos, "type %s has a status and no +kubebuilder:subresource:status", s.name)
	}
	status := d.local(f.typ)
	if status == nil {
		return
	}
	hasConditions := false
	for _, part := range status.fields {
		hasConditions = hasConditions || part.name == "Conditions"
		if !part.optional() {
			pass.Reportf(part.pos, "field %s.%s: a field of a status is optional: it is written after the object", status.name, part.name)
		}
	}
	if !hasConditions {
		pass.Reportf(f.pos, "type %s has no conditions", status.name)
	}
}

func conditions(f field) string {
	s, ok := slice(f.typ)
	if !ok {
		return "conditions are a list"
	}
	n, ok := types.Unalias(s.Elem()).(*types.Named)
	if !ok || n.Obj().Name() != "Condition" || n.Obj().Pkg() == nil || n.Obj().Pkg().Path() != "k8s.io/apimachinery/pkg/apis/meta/v1" {
		return "conditions are of type metav1.Condition"
	}
	kind, _ := f.markers.get("listType")
	key, _ := f.markers.get("listMapKey")
	if kind != "map" || key != "type" {
		return "conditions are a list of listType=map with listMapKey=type"
	}
	return ""
}

// Markers checks the markers themselves (duplicatemarkers, uniquemarkers), and that
// a rule explains itself to whoever breaks it.
var Markers = &analysis.Analyzer{
	Name: "apimarkers",
	Doc:  "markers of API types are there once, and rules have messages",
	Run: func(pass *analysis.Pass) (any, error) {
		if !isAPI(pass) {
			return nil, nil
		}
		d := declared(pass)
		for name, m := range d.markers {
			for _, problem := range repeated(m, nil) {
				pass.Reportf(name.Pos(), "type %s: %s", name.Name(), problem)
			}
		}
		for _, s := range d.structs {
			for _, f := range s.fields {
				for _, problem := range repeated(f.markers, d.all(nil, f.typ)) {
					pass.Reportf(f.pos, "field %s.%s: %s", s.name, f.name, problem)
				}
			}
		}
		return nil, nil
	},
}

// once are the markers of which a second one would contradict the first.
var once = []string{"Enum", "MinLength", "MaxLength", "MinItems", "MaxItems", "Minimum", "Maximum", "Pattern", "MultipleOf", "Format"}

// repeated lists what is wrong with markers, given those of the type below.
func repeated(own, below markers) []string {
	var problems []string
	seen := map[string]bool{}
	for _, m := range own {
		if seen[m.text] {
			problems = append(problems, "the marker +"+m.text+" is there twice")
		}
		seen[m.text] = true
		if m.key == validation+"XValidation" && !strings.Contains(m.value, "message=") && !strings.Contains(m.value, "messageExpression=") {
			problems = append(problems, "a rule without a message")
		}
	}
	for _, word := range once {
		key, n := validation+word, 0
		for _, m := range own {
			if m.key == key {
				n++
			}
		}
		switch {
		case n > 1:
			problems = append(problems, word+" is set twice")
		case n > 0 && below.has(key):
			problems = append(problems, word+" is set on the field and on its type")
		}
	}
	return problems
}
