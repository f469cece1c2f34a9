package agentapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ErrTooLong: an item is longer than MaxMessage. Nothing of it has been sent.
var ErrTooLong = errors.New("the message is too long")

// maxText keeps a Response with a long message and long details below
// MaxMessage even where JSON writes six bytes for one.
const maxText = 5000

// ReadRequest reads one request: a line of JSON, or all there is before the end
// of r. What is wrong with the request itself comes back as an *Error to answer
// with; any other error is r's, io.EOF if nothing was sent.
func ReadRequest(r io.Reader) (Request, error) {
	line, err := readMessage(r)
	if err != nil {
		return Request{}, err
	}
	// The version first: another one may have other fields.
	var v struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(line, &v); err != nil {
		return Request{}, badRequest("cannot decode the request: %v", err)
	}
	if v.Version == nil {
		return Request{}, badRequest("the request has no version; this agent speaks version %d", Version)
	}
	if *v.Version != Version {
		e := badRequest("%v", versionError(*v.Version))
		e.Details = "agent and plugin are of different releases; the agent replaces the plugin's binary when it starts"
		return Request{}, e
	}
	var req Request
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&req); err != nil {
		return Request{}, badRequest("cannot decode the request: %v", err)
	}
	if err := req.Validate(); err != nil {
		return Request{}, badRequest("invalid request: %v", err)
	}
	return req, nil
}

// readMessage reads one line. The peer sends nothing after it, so it is read in
// blocks; what comes with the newline is refused, what comes later is noticed by
// WithPeer.
func readMessage(r io.Reader) ([]byte, error) {
	var buf []byte
	for {
		buf = slices.Grow(buf, 4096)
		old := len(buf)
		n, err := r.Read(buf[old:min(cap(buf), MaxMessage)])
		buf = buf[:old+n]
		if i := bytes.IndexByte(buf[old:], '\n'); i >= 0 {
			if old+i+1 != len(buf) {
				return nil, badRequest("the request is followed by more bytes; it must be a single line")
			}
			return buf[:old+i], nil
		}
		switch {
		case len(buf) == MaxMessage:
			return nil, badRequest("the request is longer than %d bytes", MaxMessage)
		case errors.Is(err, io.EOF) && len(buf) > 0:
			return buf, nil
		case err != nil:
			return nil, err
		}
	}
}

// WriteResponse answers a request: nil is success. Texts too long for a message
// are cut.
func WriteResponse(w io.Writer, e *Error) error {
	return writeLine(w, Response{Version: Version, Error: e.clip()})
}

// WriteItem writes one line of an answer that has several. After ErrTooLong
// something shorter can be written in its place.
func WriteItem(w io.Writer, item any) error {
	raw, err := json.Marshal(item)
	if err != nil {
		return fmt.Errorf("cannot encode an item: %v", err)
	}
	return writeLine(w, Response{Version: Version, Item: raw})
}

// WriteEnd completes an answer that has several lines; without it the client
// takes the answer to be cut off. e is nil, or why the answer stops here.
func WriteEnd(w io.Writer, e *Error) error {
	return writeLine(w, Response{Version: Version, End: true, Error: e.clip()})
}

func writeLine(w io.Writer, message any) error {
	raw, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("cannot encode a message: %v", err)
	}
	if len(raw)+1 > MaxMessage {
		return fmt.Errorf("cannot send %d bytes, the limit is %d: %w", len(raw)+1, MaxMessage, ErrTooLong)
	}
	_, err = w.Write(append(raw, '\n'))
	return err
}

func (e *Error) clip() *Error {
	if e == nil {
		return nil
	}
	return &Error{Code: e.Code, Message: clip(e.Message), Details: clip(e.Details)}
}

func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.TrimSpace(strings.ToValidUTF8(s[:maxText], "")) + " … (cut)"
}
