package agentapi

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var sameAddr = cmpopts.EquateComparable(netip.Addr{})

func attachment() *Attachment {
	return &Attachment{
		Namespace: "shop", Name: "web-0", UID: "6b1d1a3e-0f3c-4b5e-9d57-1c2f1f0a7f11",
		ContainerID: "c0ffee", Netns: "/run/netns/cni-1", Interface: "eth0",
		IPs: []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")},
	}
}

const golden = `{"version":1,"add":{"namespace":"shop","name":"web-0",` +
	`"uid":"6b1d1a3e-0f3c-4b5e-9d57-1c2f1f0a7f11","containerID":"c0ffee",` +
	`"netns":"/run/netns/cni-1","interface":"eth0","ips":["10.1.2.3","fd00::3"]}}` + "\n"

func TestRequestOnTheWire(t *testing.T) {
	var wire bytes.Buffer
	want := Request{Version: Version, Add: attachment()}
	if err := writeLine(&wire, want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(golden, wire.String()); diff != "" {
		t.Fatalf("wire form changed (-want +got):\n%s", diff)
	}
	readers := map[string]io.Reader{
		"at once":         strings.NewReader(golden),
		"byte by byte":    iotest.OneByteReader(strings.NewReader(golden)),
		"without newline": strings.NewReader(strings.TrimSpace(golden)),
		"EOF with data":   iotest.DataErrReader(strings.NewReader(golden)),
	}
	for name, r := range readers {
		t.Run(name, func(t *testing.T) {
			got, err := ReadRequest(r)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, sameAddr); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadRequestRefuses(t *testing.T) {
	padded := func(total int) string {
		const head, tail = `{"version":1,"status":{`, `}}` + "\n"
		return head + strings.Repeat(" ", total-len(head)-len(tail)) + tail
	}
	if _, err := ReadRequest(strings.NewReader(padded(MaxMessage))); err != nil {
		t.Errorf("a request of the greatest length: %v", err)
	}
	tests := map[string]struct{ request, says string }{
		"another version":         {`{"version":2,"evict":{"all":true}}`, "this agent speaks version 1, the request has version 2"},
		"no version":              {`{"add":{}}`, "the request has no version"},
		"version of another type": {`{"version":"1"}`, "cannot decode the request"},
		"unknown field":           {`{"version":1,"evict":{}}`, `unknown field "evict"`},
		"unknown inner field":     {`{"version":1,"add":{"uuid":"x"}}`, `unknown field "uuid"`},
		"unknown status field":    {`{"version":1,"status":{"pod":"x"}}`, `unknown field "pod"`},
		"no operation":            {`{"version":1}`, "this one carries 0"},
		"two operations":          {`{"version":1,"status":{},"del":{"containerID":"c"}}`, "this one carries 2"},
		"not JSON":                {`GET / HTTP/1.1`, "cannot decode the request"},
		"not an object":           {`[1]`, "cannot decode the request"},
		"cut off":                 {`{"version":1,"status":{`, "cannot decode the request"},
		"second object":           {`{"version":1,"status":{}} {}`, "cannot decode the request"},
		"second line":             {`{"version":1,"status":{}}` + "\n{}", "followed by more bytes"},
		"empty line":              {"\n", "cannot decode the request"},
		"one byte too long":       {padded(MaxMessage + 1), "longer than 65536 bytes"},
		"endless":                 {strings.Repeat("a", 4*MaxMessage), "longer than 65536 bytes"},
		"bad address":             {`{"version":1,"del":{"containerID":"c","ips":["10.0.0.256"]}}`, "cannot decode the request"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := ReadRequest(strings.NewReader(tt.request))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want an *Error to answer with", err)
			}
			if e.Code != CodeBadRequest || !strings.Contains(e.Message, tt.says) {
				t.Errorf("got %d %q, want %d and %q", e.Code, e.Message, CodeBadRequest, tt.says)
			}
		})
	}
}

func TestReadRequestPassesOnTheReadersError(t *testing.T) {
	if _, err := ReadRequest(strings.NewReader("")); !errors.Is(err, io.EOF) {
		t.Errorf("nothing sent: got %v, want io.EOF", err)
	}
	broken := io.MultiReader(strings.NewReader(`{"version"`), iotest.ErrReader(io.ErrClosedPipe))
	if _, err := ReadRequest(broken); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("broken half-way: got %v, want io.ErrClosedPipe", err)
	}
}

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		change func(*Attachment)
		says   string
	}{
		"no namespace":          {func(a *Attachment) { a.Namespace = "" }, "namespace is missing"},
		"no name":               {func(a *Attachment) { a.Name = "" }, "name is missing"},
		"no uid":                {func(a *Attachment) { a.UID = "" }, "uid is missing"},
		"no container":          {func(a *Attachment) { a.ContainerID = "" }, "containerID is missing"},
		"no netns":              {func(a *Attachment) { a.Netns = "" }, "netns is missing"},
		"no interface":          {func(a *Attachment) { a.Interface = "" }, "interface is missing"},
		"namespace with slash":  {func(a *Attachment) { a.Namespace = "a/b" }, `namespace "a/b" has characters`},
		"upper-case name":       {func(a *Attachment) { a.Name = "Web" }, `name "Web" has characters`},
		"long name":             {func(a *Attachment) { a.Name = strings.Repeat("a", 254) }, "name has 254 bytes, at most 253"},
		"uid out of its folder": {func(a *Attachment) { a.UID = "../../etc/x" }, `uid "../../etc/x" has characters`},
		"uid of dots":           {func(a *Attachment) { a.UID = ".." }, `uid ".." has characters`},
		"container with space":  {func(a *Attachment) { a.ContainerID = "c 1" }, `containerID "c 1" has characters`},
		"relative netns":        {func(a *Attachment) { a.Netns = "run/netns/x" }, `netns "run/netns/x" is not an absolute path`},
		"netns with NUL":        {func(a *Attachment) { a.Netns = "/run/\x00" }, "has characters"},
		"interface with slash":  {func(a *Attachment) { a.Interface = "a/b" }, `interface "a/b" has characters`},
		"interface of dots":     {func(a *Attachment) { a.Interface = ".." }, `interface ".." has characters`},
		"long interface":        {func(a *Attachment) { a.Interface = "abcdefghijklmnop" }, "interface has 16 bytes, at most 15"},
		"address with zone":     {func(a *Attachment) { a.IPs[0] = netip.MustParseAddr("fe80::1%eth0") }, "is not an address without a zone"},
		"no address":            {func(a *Attachment) { a.IPs[0] = netip.Addr{} }, "is not an address without a zone"},
		"too many addresses":    {func(a *Attachment) { a.IPs = make([]netip.Addr, 65) }, "ips has 65 addresses"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := attachment()
			tt.change(a)
			for op, req := range map[string]Request{"add": {Version: 1, Add: a}, "check": {Version: 1, Check: a}} {
				err := req.Validate()
				if err == nil || !strings.Contains(err.Error(), tt.says) || !strings.HasPrefix(err.Error(), op+": ") {
					t.Errorf("%s: got %v, want %q", op, err, tt.says)
				}
			}
		})
	}
}

func TestDelNeedsTheContainerAlone(t *testing.T) {
	if err := (Request{Version: 1, Del: &Attachment{ContainerID: "c0ffee"}}).Validate(); err != nil {
		t.Error(err)
	}
	if err := (Request{Version: 1, Del: &Attachment{UID: "u"}}).Validate(); err == nil {
		t.Error("a DEL without a container id is valid")
	}
	if err := (Request{Version: 1, Del: &Attachment{ContainerID: "c", UID: "a/b"}}).Validate(); err == nil {
		t.Error("a DEL with an unsafe uid is valid")
	}
}

func TestLongTextsAreCut(t *testing.T) {
	for name, unit := range map[string]string{"ascii": "a", "escaped": "<", "invalid": "\xff", "wide": "€"} {
		t.Run(name, func(t *testing.T) {
			var wire bytes.Buffer
			long := strings.Repeat(unit, MaxMessage)
			if err := WriteResponse(&wire, &Error{Code: CodeKernel, Message: long, Details: long}); err != nil {
				t.Fatal(err)
			}
			if wire.Len() > MaxMessage {
				t.Errorf("the answer takes %d bytes", wire.Len())
			}
			if strings.Count(wire.String(), "… (cut)") != 2 {
				t.Error("message or details do not say that they are cut")
			}
			if unit == "€" && strings.Contains(wire.String(), `\ufffd`) {
				t.Error("cut in the middle of a character")
			}
		})
	}
}

func TestOversizeItemIsNotSent(t *testing.T) {
	var wire bytes.Buffer
	if err := WriteItem(&wire, strings.Repeat("a", MaxMessage)); !errors.Is(err, ErrTooLong) || wire.Len() > 0 {
		t.Errorf("got %v and %d bytes, want ErrTooLong and none", err, wire.Len())
	}
	if err := WriteItem(&wire, func() {}); err == nil || errors.Is(err, ErrTooLong) {
		t.Errorf("what JSON cannot hold: %v", err)
	}
}

func FuzzReadRequest(f *testing.F) {
	f.Add([]byte(golden))
	f.Add([]byte(`{"version":1,"del":{"containerID":"c0ffee"}}`))
	f.Add([]byte(`{"version":1,"status":{}}` + "\n"))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"version":2,"status":{},"STATUS":null}`))
	f.Add([]byte(`{"version":1,"check":{"ips":["::ffff:10.0.0.1%x"]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		req, err := ReadRequest(bytes.NewReader(data))
		var refusal *Error
		switch {
		case errors.As(err, &refusal):
			if err := WriteResponse(io.Discard, refusal); err != nil {
				t.Fatalf("the refusal cannot be sent: %v", err)
			}
			return
		case err != nil:
			if len(data) != 0 {
				t.Fatalf("%q: %v is not an *Error", data, err)
			}
			return
		}
		var wire bytes.Buffer
		if err := writeLine(&wire, req); err != nil {
			t.Fatal(err)
		}
		again, err := ReadRequest(&wire)
		if err != nil {
			t.Fatalf("%q was accepted, but not what it was read as: %v", data, err)
		}
		if diff := cmp.Diff(req, again, sameAddr, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("(-first +second):\n%s", diff)
		}
	})
}
