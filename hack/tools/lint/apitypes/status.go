package apitypes

import (
	"strings"

	"golang.org/x/tools/go/analysis"
)

// Status checks that a kind with a status has conditions.
var Status = &analysis.Analyzer{
	Name: "apistatus",
	Doc:  "the status of an API kind has conditions",
	Run: forFields(func(pass *analysis.Pass, d *declarations, f field) {
		root, _ := f.in.markers.get("kubebuilder:object:root")
		if f.name != "Status" || root != "true" {
			return
		}
		status := d.local(f.typ)
		if status == nil {
			return
		}
		for _, part := range status.fields {
			if part.name == "Conditions" {
				return
			}
		}
		pass.Reportf(f.pos, "type %s has no conditions", status.name)
	}),
}

// Rules checks that a rule explains itself to whoever breaks it.
var Rules = &analysis.Analyzer{
	Name: "apirules",
	Doc:  "rules of API types have messages",
	Run: onAPI(func(pass *analysis.Pass) (any, error) {
		d := declared(pass)
		for name, own := range d.markers {
			if mute(own) {
				pass.Reportf(name.Pos(), "type %s: a rule without a message", name.Name())
			}
		}
		for _, s := range d.structs {
			for _, f := range s.fields {
				if mute(f.markers) {
					pass.Reportf(f.pos, "field %s.%s: a rule without a message", s.name, f.name)
				}
			}
		}
		return nil, nil
	}),
}

func mute(own markers) bool {
	for _, m := range own {
		if m.key == validation+"XValidation" && !strings.Contains(m.value, "message=") && !strings.Contains(m.value, "messageExpression=") {
			return true
		}
	}
	return false
}
