package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// A span is where a value stands in a text.
type span struct{ from, to int }

func (s span) of(text []byte) []byte { return text[s.from:s.to] }

func all(text []byte) span { return span{0, len(text)} }

// object returns where the values of the fields of the object at a place in the text
// stand.
func object(text []byte, at span) (map[string]span, error) {
	// Once as a whole: the decoder below does not look behind the object.
	var whole map[string]json.RawMessage
	if err := json.Unmarshal(at.of(text), &whole); err != nil {
		return nil, fmt.Errorf("not a JSON object: %w", err)
	}
	if whole == nil {
		return nil, errors.New("not a JSON object: null")
	}
	decoder := json.NewDecoder(bytes.NewReader(at.of(text)))
	if _, err := decoder.Token(); err != nil {
		return nil, err
	}
	fields := map[string]span{}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string) // as the names of fields are
		if _, twice := fields[name]; twice {
			return nil, fmt.Errorf("the field %q stands there twice", name)
		}
		if fields[name], err = value(decoder, at.from); err != nil {
			return nil, err
		}
	}
	return fields, nil
}

// array returns where the elements of the array at a place in the text stand.
func array(text []byte, at span) ([]span, error) {
	var whole []json.RawMessage
	if err := json.Unmarshal(at.of(text), &whole); err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(at.of(text)))
	if _, err := decoder.Token(); err != nil {
		return nil, err
	}
	var elements []span
	for decoder.More() {
		element, err := value(decoder, at.from)
		if err != nil {
			return nil, err
		}
		elements = append(elements, element)
	}
	return elements, nil
}

// value is where the next value of a decoder stands, which reads from a place on.
func value(decoder *json.Decoder, from int) (span, error) {
	var raw json.RawMessage
	if err := decoder.Decode(&raw); err != nil {
		return span{}, err
	}
	to := from + int(decoder.InputOffset())
	return span{to - len(raw), to}, nil
}
