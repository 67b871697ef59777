package apitypes

import (
	"fmt"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// Kinds refuses what has no schema, and lists that could have a null in them.
var Kinds = &analysis.Analyzer{
	Name: "apikinds",
	Doc:  "API fields have a schema, and lists no null elements",
	Run: forFields(func(pass *analysis.Pass, d *declarations, f field) {
		if why := refusedKind(f.typ); why != "" && !f.inline {
			pass.Reportf(f.pos, "field %s.%s: %s", f.in.name, f.name, why)
		}
	}),
}

func refusedKind(t types.Type) string {
	switch u := deref(t).Underlying().(type) {
	case *types.Slice:
		if isPointer(u.Elem()) {
			return "the elements of a list are no pointers"
		}
		return refusedKind(u.Elem())
	case *types.Interface:
		return "an interface has no schema"
	}
	return ""
}

// Presence checks that a field which is not given can be told from a zero value. The
// linters optionalfields and requiredfields want a pointer to each point in time and each
// quantity, whose zero value is absent by omitzero.
var Presence = &analysis.Analyzer{
	Name: "apipresence",
	Doc:  "API fields leave nothing open about their zero value",
	Run: forFields(func(pass *analysis.Pass, d *declarations, f field) {
		if problem := d.presence(f); problem != "" && !f.inline {
			pass.Reportf(f.pos, "field %s.%s: %s", f.in.name, f.name, problem)
		}
	}),
}

func (d *declarations) presence(f field) string {
	// The items of a list are there even if there are none.
	if f.in.list() && f.name == "Items" {
		return ""
	}
	_, isStruct := deref(f.typ).Underlying().(*types.Struct)
	switch {
	case isStruct && !isPointer(f.typ) && !f.omits("omitzero"):
		if f.name == "ListMeta" {
			return ""
		}
		return "a struct that may be absent needs omitzero in its json tag"
	case (!isStruct || isPointer(f.typ)) && !f.omits("omitempty"):
		return "omitempty is missing in the json tag"
	}
	return d.zero(f)
}

// zero says what is wrong with a scalar's zero value.
func (d *declarations) zero(f field) string {
	valid, scalar := d.zeroValid(f)
	switch {
	case !scalar:
	case valid && !isPointer(f.typ):
		return "its zero value is valid: use a pointer, so that it can be told from a field that is not given, or a bound that refuses it"
	case !valid && isPointer(f.typ):
		return "its zero value is not valid: it needs no pointer"
	}
	if _, ok := slice(f.typ); ok && isPointer(f.typ) {
		return "a list needs no pointer"
	}
	return ""
}

func (d *declarations) zeroValid(f field) (valid, scalar bool) {
	m := d.all(f.markers, f.typ)
	switch {
	case isString(f.typ):
		if enum, ok := m.get(validation + "Enum"); ok {
			for _, word := range strings.Split(enum, ";") {
				if word == "" || word == `""` {
					return true, true
				}
			}
			return false, true
		}
		n, ok := m.number(validation + "MinLength")
		return !ok || n < 1, true
	case isInteger(f.typ):
		low, hasLow := m.number(validation + "Minimum")
		high, hasHigh := m.number(validation + "Maximum")
		return (!hasLow || low <= 0) && (!hasHigh || high >= 0), true
	}
	return false, false
}

// maxSafe is the largest whole number that every reader of JSON can hold.
const maxSafe = 1<<53 - 1

// Bounds checks what maxlength does not: that strings and lists have a least length, and
// that numbers are bounded. The linter minlength wants a least number of items of optional
// lists too, for which absent and empty would differ.
var Bounds = &analysis.Analyzer{
	Name: "apibounds",
	Doc:  "API strings, numbers and required lists are bounded",
	Run: forFields(func(pass *analysis.Pass, d *declarations, f field) {
		if f.inline || (f.in.list() && f.name == "Items") {
			return
		}
		if problem := d.bounds(f); problem != "" {
			pass.Reportf(f.pos, "field %s.%s: %s", f.in.name, f.name, problem)
		}
	}),
}

func (d *declarations) bounds(f field) string {
	m := d.all(f.markers, f.typ)
	if s, ok := slice(f.typ); ok {
		if f.required() && !m.has(validation+"MinItems") {
			return "MinItems is missing: a required list may be empty otherwise"
		}
		elements := d.all(nil, s.Elem())
		if isString(s.Elem()) && !elements.has(validation+"Enum") && !elements.has(validation+"MinLength") && !m.has(validation+"items:MinLength") {
			return "MinLength of the items is missing"
		}
		return ""
	}
	if d.external(f.typ) {
		return ""
	}
	switch {
	case isString(f.typ) && !m.has(validation+"Enum") && !m.has(validation+"MinLength"):
		return "MinLength is missing"
	case isInteger(f.typ):
		low, hasLow := m.number(validation + "Minimum")
		high, hasHigh := m.number(validation + "Maximum")
		switch {
		case !hasLow || !hasHigh:
			return "Minimum or Maximum is missing"
		case low < -maxSafe || high > maxSafe:
			return fmt.Sprintf("its bounds exceed %d, the largest whole number that every reader of JSON can hold", int64(maxSafe))
		}
	}
	return ""
}
