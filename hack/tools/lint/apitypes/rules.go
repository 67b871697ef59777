package apitypes

import (
	"fmt"
	"go/types"
	"regexp"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// Kinds refuses types whose values do not survive the way through JSON, or that
// cannot be extended later (nobools, nofloats, nomaps, nodurations, integers).
var Kinds = &analysis.Analyzer{
	Name: "apikinds",
	Doc:  "API fields are strings, int32, int64, structs and lists of them",
	Run: forFields(func(pass *analysis.Pass, d *declarations, f field) {
		if why := refusedKind(f.typ); why != "" && !f.inline {
			pass.Reportf(f.pos, "field %s.%s: %s", f.in.name, f.name, why)
		}
	}),
}

func refusedKind(t types.Type) string {
	t = deref(t)
	if n, ok := t.(*types.Named); ok && n.Obj().Name() == "Duration" && n.Obj().Pkg() != nil {
		return "a duration is written as a number with its unit in the field's name, such as timeoutSeconds"
	}
	switch u := t.Underlying().(type) {
	case *types.Slice:
		if isPointer(u.Elem()) {
			return "the elements of a list are no pointers"
		}
		return refusedKind(u.Elem())
	case *types.Map:
		return "a map cannot be extended: use a list of structs with listType=map"
	case *types.Interface:
		return "an interface has no schema"
	case *types.Basic:
		switch {
		case u.Info()&types.IsBoolean != 0:
			return "a bool cannot get a third value later: use a string with an Enum"
		case u.Info()&types.IsFloat != 0:
			return "a float changes on its way: use a whole number of a smaller unit"
		case u.Info()&types.IsInteger != 0 && u.Kind() != types.Int32 && u.Kind() != types.Int64:
			return fmt.Sprintf("an integer is int32 or int64, not %s", u.Name())
		}
	}
	return ""
}

var (
	jsonName      = regexp.MustCompile(`^[a-z][a-zA-Z0-9]*$`)
	timestampWord = regexp.MustCompile(`(?i)timestamp`)
)

// Names checks names and comments (jsontags, commentstart, nophase, notimestamp,
// noreferences).
var Names = &analysis.Analyzer{
	Name: "apinames",
	Doc:  "API fields are named by the conventions, and their comments begin with that name",
	Run: forFields(func(pass *analysis.Pass, d *declarations, f field) {
		if f.inline {
			return
		}
		refuse := func(format string, args ...any) {
			pass.Reportf(f.pos, "field %s.%s: %s", f.in.name, f.name, fmt.Sprintf(format, args...))
		}
		switch {
		case !f.tagged:
			refuse("no json tag")
			return
		case !jsonName.MatchString(f.json):
			refuse("the json name %q is not lowerCamelCase", f.json)
		case !strings.HasPrefix(f.doc, f.json+" "):
			refuse("its comment does not begin with %q, as users write it", f.json)
		}
		switch {
		case strings.Contains(f.name, "Phase"):
			refuse("a phase hides what is known: use conditions")
		case timestampWord.MatchString(f.name):
			refuse("a point in time is called somethingTime")
		case strings.HasSuffix(f.name, "Reference") || strings.HasSuffix(f.name, "References"):
			refuse("a reference is called somethingRef or somethingRefs")
		}
	}),
}

// Presence checks that a field says whether it must be given, and that what is not
// given can be told from a zero value (optionalorrequired, optionalfields,
// requiredfields, defaults, defaultorrequired, nonullable).
var Presence = &analysis.Analyzer{
	Name: "apipresence",
	Doc:  "API fields are optional or required, and leave nothing open about their zero value",
	Run: forFields(func(pass *analysis.Pass, d *declarations, f field) {
		if problem := d.presence(f); problem != "" && !f.inline {
			pass.Reportf(f.pos, "field %s.%s: %s", f.in.name, f.name, problem)
		}
	}),
}

func (d *declarations) presence(f field) string {
	hasDefault := f.markers.has("default", "kubebuilder:default", "k8s:default")
	switch {
	case f.optional() == f.required():
		return "exactly one of +optional and +required is needed"
	case f.required() && hasDefault:
		return "a required field cannot have a default"
	case f.markers.has("nullable"):
		return "null would be a third state beside absent and given"
	}
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

// Bounds checks that every value is bounded, so that an object is (maxlength,
// minlength, numericbounds).
var Bounds = &analysis.Analyzer{
	Name: "apibounds",
	Doc:  "API strings, numbers and lists are bounded",
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
		if !m.has(validation + "MaxItems") {
			return "MaxItems is missing"
		}
		if f.required() && !m.has(validation+"MinItems") {
			return "MinItems is missing: a required list may be empty otherwise"
		}
		elements := d.all(nil, s.Elem())
		if isString(s.Elem()) && !elements.has(validation+"Enum") && !bounded(elements, "") && !bounded(m, "items:") {
			return "MinLength or MaxLength of the items is missing"
		}
		return ""
	}
	if d.external(f.typ) {
		return ""
	}
	switch {
	case isString(f.typ) && !m.has(validation+"Enum") && !bounded(m, ""):
		return "MinLength or MaxLength is missing"
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

// bounded tells whether a string has a least and a greatest length.
func bounded(m markers, what string) bool {
	return m.has(validation+what+"MaxLength") && m.has(validation+what+"MinLength")
}
