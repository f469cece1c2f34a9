// Package strictyaml reads YAML that people write into the structs that describe it,
// and says all that is wrong with it, in words that a reader of the file understands:
// each field by its path, what stands there and what may stand there.
//
// Names count letter by letter, as they do for Kubernetes and do not for
// encoding/json. What stands there has the type it has in YAML: a label's value on, or
// 1, is not a string, and is not taken for one.
//
// # Failures it survives
//
//   - A field that does not exist, is spelt in other case, stands twice or holds
//     another type: refused by name, all of them at once, with the field that was
//     probably meant.
//   - A null in a list or a mapping, which would silently be an empty string: refused.
//     A field that is null is a field that was left out.
//   - A text made to fill a log: quotes are short, and only the first [MaxProblems]
//     problems are named.
package strictyaml

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// MaxProblems is how many problems of one document are named; others are counted.
const MaxProblems = 20

// A Document is one YAML document that is a mapping, or empty.
type Document struct {
	json  []byte // a mapping
	heads map[string]json.RawMessage
	twice []error
}

// Parse reads one document. It fails if text is not YAML, or not a mapping.
func Parse(text []byte) (*Document, error) {
	var twice []error
	converted, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		// The library has two ways to fail here: fields that stand twice, and worse.
		strict := err
		if converted, err = yaml.YAMLToJSON(text); err != nil {
			return nil, fmt.Errorf("not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		}
		twice = duplicates(strict)
	}
	d := &Document{json: converted, twice: twice}
	if err := json.Unmarshal(converted, &d.heads); err != nil {
		return nil, fmt.Errorf("not a mapping of fields: %s", clip(converted))
	}
	return d, nil
}

// Empty says that there is nothing in the document but comments.
func (d *Document) Empty() bool { return d.heads == nil }

// Text returns the text in a field at the top; it is empty if there is none.
func (d *Document) Text(field string) string {
	var text string
	if json.Unmarshal(d.heads[field], &text) != nil {
		return ""
	}
	return text
}

// Decode reads the document into the struct that target points to. What the document
// does not name stays as it is; a list that it names is replaced. It returns all that
// is wrong; what is right has been read.
func (d *Document) Decode(target any) []error {
	w := walk{problems: d.twice}
	if !d.Empty() {
		w.object("", d.json, reflect.ValueOf(target).Elem())
	}
	if more := len(w.problems) - MaxProblems; more > 0 {
		return append(w.problems[:MaxProblems:MaxProblems], fmt.Errorf("and %d more", more))
	}
	return w.problems
}

var duplicate = regexp.MustCompile(`(line \d+): key (".*") already set in map`)

// duplicates finds the fields that stand twice in the library's error.
func duplicates(err error) []error {
	var all []error
	for _, match := range duplicate.FindAllStringSubmatch(err.Error(), -1) {
		all = append(all, fmt.Errorf("%s: the field %s stands here for the second time", match[1], match[2]))
	}
	if all == nil {
		return []error{errors.New(strings.TrimPrefix(err.Error(), "yaml: "))}
	}
	return all
}

// clip shortens what an error quotes.
func clip(text []byte) string {
	const most = 60
	if len(text) <= most {
		return string(text)
	}
	return strings.ToValidUTF8(string(text[:most]), "") + "…"
}
