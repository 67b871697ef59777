package apitypes

import (
	"go/ast"
	"go/token"
	"go/types"
	"reflect"
	"strconv"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// markers are the comment lines that begin with "+", without it: the key is up to
// the first "=", the value what follows.
type markers []marker

type marker struct{ key, value string }

const validation = "kubebuilder:validation:"

func markersOf(groups ...*ast.CommentGroup) markers {
	var out markers
	for _, g := range groups {
		if g == nil {
			continue
		}
		for _, c := range g.List {
			text, ok := strings.CutPrefix(strings.TrimSpace(strings.TrimPrefix(c.Text, "//")), "+")
			if !ok {
				continue
			}
			key, value, _ := strings.Cut(text, "=")
			// An argument list follows some keys after a colon.
			if head, _, found := strings.Cut(key, "XValidation:"); found {
				key, value = head+"XValidation", text
			}
			out = append(out, marker{key: key, value: value})
		}
	}
	return out
}

// has reports whether one of the keys is there.
func (m markers) has(keys ...string) bool {
	_, ok := m.get(keys...)
	return ok
}

// get returns the value of the first marker with one of the keys.
func (m markers) get(keys ...string) (string, bool) {
	for _, mk := range m {
		for _, key := range keys {
			if mk.key == key {
				return mk.value, true
			}
		}
	}
	return "", false
}

// number returns the whole number that a marker sets.
func (m markers) number(key string) (int64, bool) {
	value, ok := m.get(key)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(value, 10, 64)
	return n, err == nil
}

// field is one field of a struct.
type field struct {
	in       *structure
	pos      token.Pos
	name     string // in Go
	embedded bool
	typ      types.Type
	markers  markers
	tags     []string // of the json tag, behind the name
	inline   bool
}

func (f field) omits(how string) bool {
	for _, t := range f.tags {
		if t == how {
			return true
		}
	}
	return false
}

func (f field) required() bool { return f.markers.has("required", validation+"Required") }

// structure is one struct type of the package.
type structure struct {
	name    string
	markers markers
	fields  []field
}

// list reports whether the struct is the list of a kind.
func (s *structure) list() bool {
	for _, f := range s.fields {
		if f.embedded && f.name == "ListMeta" {
			return true
		}
	}
	return false
}

// declarations are the types of a package.
type declarations struct {
	structs []*structure
	// markers are those of every declared type.
	markers map[*types.TypeName]markers
	byName  map[string]*structure
}

// declared reads the types of the package's hand-written files.
func declared(pass *analysis.Pass) *declarations {
	d := &declarations{markers: map[*types.TypeName]markers{}, byName: map[string]*structure{}}
	for _, file := range pass.Files {
		if ast.IsGenerated(file) || strings.HasSuffix(pass.Fset.Position(file.Package).Filename, "_test.go") {
			continue
		}
		for _, decl := range file.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.TYPE {
				continue
			}
			for _, spec := range gen.Specs {
				if spec, ok := spec.(*ast.TypeSpec); ok {
					d.add(pass, spec, markersOf(gen.Doc, spec.Doc))
				}
			}
		}
	}
	return d
}

func (d *declarations) add(pass *analysis.Pass, spec *ast.TypeSpec, m markers) {
	if name, ok := pass.TypesInfo.Defs[spec.Name].(*types.TypeName); ok {
		d.markers[name] = m
	}
	st, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	s := &structure{name: spec.Name.Name, markers: m}
	for _, f := range st.Fields.List {
		s.fields = append(s.fields, fieldsOf(pass, s, f)...)
	}
	d.structs = append(d.structs, s)
	d.byName[s.name] = s
}

func fieldsOf(pass *analysis.Pass, s *structure, f *ast.Field) []field {
	base := field{in: s, pos: f.Pos(), typ: pass.TypesInfo.TypeOf(f.Type), markers: markersOf(f.Doc)}
	if f.Tag != nil {
		if text, err := strconv.Unquote(f.Tag.Value); err == nil {
			base.tags = strings.Split(reflect.StructTag(text).Get("json"), ",")[1:]
			base.inline = base.omits("inline")
		}
	}
	if len(f.Names) == 0 {
		base.embedded = true
		if n, ok := deref(base.typ).(*types.Named); ok {
			base.name = n.Obj().Name()
		}
		return []field{base}
	}
	var out []field
	for _, name := range f.Names {
		one := base
		one.name, one.pos = name.Name, name.Pos()
		out = append(out, one)
	}
	return out
}

// deref takes the pointer away.
func deref(t types.Type) types.Type {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		return types.Unalias(p.Elem())
	}
	return types.Unalias(t)
}

func isPointer(t types.Type) bool {
	_, ok := types.Unalias(t).(*types.Pointer)
	return ok
}

// all returns the markers that hold for a type: those given, and those of the type's
// own declaration if it is one of this package.
func (d *declarations) all(own markers, t types.Type) markers {
	if n, ok := deref(t).(*types.Named); ok {
		return append(append(markers{}, own...), d.markers[n.Obj()]...)
	}
	return own
}

// local returns the struct of this package that a type is, or nil.
func (d *declarations) local(t types.Type) *structure {
	if n, ok := deref(t).(*types.Named); ok {
		if _, mine := d.markers[n.Obj()]; mine {
			return d.byName[n.Obj().Name()]
		}
	}
	return nil
}

// external reports whether a type is declared elsewhere: its author chose it.
func (d *declarations) external(t types.Type) bool {
	n, ok := deref(t).(*types.Named)
	if !ok || n.Obj().Pkg() == nil {
		return false
	}
	_, mine := d.markers[n.Obj()]
	return !mine
}

// basic returns the basic type below a type.
func basic(t types.Type) (*types.Basic, bool) {
	b, ok := deref(t).Underlying().(*types.Basic)
	return b, ok
}

func isString(t types.Type) bool {
	b, ok := basic(t)
	return ok && b.Info()&types.IsString != 0
}

func isInteger(t types.Type) bool {
	b, ok := basic(t)
	return ok && b.Info()&types.IsInteger != 0
}

func slice(t types.Type) (*types.Slice, bool) {
	s, ok := deref(t).Underlying().(*types.Slice)
	return s, ok
}
