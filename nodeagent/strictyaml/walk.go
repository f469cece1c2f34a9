package strictyaml

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A walk goes through a document and a Go value side by side.
type walk struct {
	problems []error
}

func (w *walk) problem(format string, args ...any) {
	w.problems = append(w.problems, fmt.Errorf(format, args...))
}

// value reads what stands at path into v.
func (w *walk) value(path string, text json.RawMessage, v reflect.Value) {
	t := v.Type()
	switch {
	case t.Kind() == reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		w.value(path, text, v.Elem())
	case readsItself(t):
		w.leaf(path, text, v)
	case t.Kind() == reflect.Struct:
		w.object(path, text, v)
	case t.Kind() == reflect.Map:
		w.mapping(path, text, v)
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		w.list(path, text, v)
	default:
		w.leaf(path, text, v)
	}
}

// leaf reads what has no parts.
func (w *walk) leaf(path string, text json.RawMessage, v reflect.Value) {
	if isNull(text) || json.Unmarshal(text, v.Addr().Interface()) != nil {
		w.wrong(path, text, v.Type())
	}
}

func (w *walk) wrong(path string, text json.RawMessage, t reflect.Type) {
	w.problem("%s: %s is not %s", path, clip(text), describe(t, text))
}

// object reads the fields of a struct.
func (w *walk) object(path string, text json.RawMessage, v reflect.Value) {
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) != nil || members == nil {
		w.wrong(path, text, v.Type())
		return
	}
	fields := map[string]reflect.Value{}
	fieldsOf(v, fields)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		at := strings.TrimPrefix(path+"."+clip([]byte(name)), ".")
		switch field, ok := fields[name]; {
		case !ok:
			w.problem("unknown field %q%s", at, suggest(name, fields))
		case !isNull(members[name]):
			w.value(at, members[name], field)
		}
	}
}

// fieldsOf collects a struct's fields by their names in a document; those of a struct
// that is embedded without a name are the outer one's.
func fieldsOf(v reflect.Value, into map[string]reflect.Value) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous && name == "":
			fieldsOf(v.Field(i), into)
		case field.IsExported() && name != "" && name != "-":
			into[name] = v.Field(i)
		}
	}
}

func (w *walk) mapping(path string, text json.RawMessage, v reflect.Value) {
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) != nil || members == nil {
		w.wrong(path, text, v.Type())
		return
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(members)))
	for _, key := range slices.Sorted(maps.Keys(members)) {
		element := reflect.New(v.Type().Elem()).Elem()
		w.value(fmt.Sprintf("%s[%s]", path, clip([]byte(key))), members[key], element)
		v.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), element)
	}
}

func (w *walk) list(path string, text json.RawMessage, v reflect.Value) {
	var members []json.RawMessage
	if json.Unmarshal(text, &members) != nil || members == nil {
		w.wrong(path, text, v.Type())
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(members), len(members)))
	for i, member := range members {
		w.value(fmt.Sprintf("%s[%d]", path, i), member, v.Index(i))
	}
}

func isNull(text json.RawMessage) bool { return bytes.Equal(text, []byte("null")) }

// readsItself says whether a type brings its own way to be read.
func readsItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// describe says what may stand where a type is wanted.
func describe(t reflect.Type, text json.RawMessage) string {
	switch t {
	case reflect.TypeFor[metav1.Duration]():
		return "a duration such as 10s or 1m30s"
	case reflect.TypeFor[metav1.Time]():
		return "a time such as 2026-01-02T15:04:05Z"
	case reflect.TypeFor[slog.Level]():
		return "debug, info, warn or error"
	case reflect.TypeFor[netip.Addr]():
		return "an IP address"
	}
	if readsItself(t) {
		return "a " + t.Name()
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		if text[0] == '{' || text[0] == '[' {
			return "a string"
		}
		return "a string: put it in quotes"
	case reflect.Struct, reflect.Map:
		return "a mapping"
	case reflect.Slice:
		return "a list"
	default:
		return "a number that fits here"
	}
}

// suggest names the field that was probably meant; if there is none, all that may
// stand there, unless they are too many to be of help.
func suggest(name string, fields map[string]reflect.Value) string {
	const few = 16
	near := min(2, len(name)/2)
	names := slices.Sorted(maps.Keys(fields))
	for _, known := range names {
		if distance(strings.ToLower(name), strings.ToLower(known)) <= near {
			return fmt.Sprintf(" (did you mean %q?)", known)
		}
	}
	if len(names) > few {
		return ""
	}
	return " (known here: " + strings.Join(names, ", ") + ")"
}

// distance is the number of letters to add, drop or exchange to make one of the other.
func distance(a, b string) int {
	const far = 99
	if diff := len(a) - len(b); diff > 2 || diff < -2 {
		return far
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
