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

// object returns where the values of an object's fields stand.
func object(text []byte) (map[string]span, error) {
	// Once as a whole: the decoder below does not look behind the object.
	var whole map[string]json.RawMessage
	if err := json.Unmarshal(text, &whole); err != nil {
		return nil, fmt.Errorf("not a JSON object: %w", err)
	}
	if whole == nil {
		return nil, errors.New("not a JSON object: null")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
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
		if fields[name], err = value(decoder); err != nil {
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
		element, err := value(decoder)
		if err != nil {
			return nil, err
		}
		elements = append(elements, span{at.from + element.from, at.from + element.to})
	}
	return elements, nil
}

func value(decoder *json.Decoder) (span, error) {
	var raw json.RawMessage
	if err := decoder.Decode(&raw); err != nil {
		return span{}, err
	}
	to := int(decoder.InputOffset())
	return span{to - len(raw), to}, nil
}
