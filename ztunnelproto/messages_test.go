package ztunnelproto

import (
	"encoding/hex"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

func addRequest(uid, name, namespace, account string) *WorkloadRequest {
	return &WorkloadRequest{Payload: &WorkloadRequest_Add{Add: &AddWorkload{
		Uid:          uid,
		WorkloadInfo: &WorkloadInfo{Name: name, Namespace: namespace, ServiceAccount: account},
	}}}
}

func snapshotSent() *WorkloadRequest {
	return &WorkloadRequest{Payload: &WorkloadRequest_SnapshotSent{SnapshotSent: &SnapshotSent{}}}
}

var golden = []struct {
	name, hex string
	message   proto.Message
}{
	{"hello", "0801", &ZdsHello{Version: Version_V1}},
	{"add", "0a160a0475696430120e0a046e616d6512026e731a027361", addRequest("uid0", "name", "ns", "sa")},
	{"keep", "2a060a0475696430", &WorkloadRequest{Payload: &WorkloadRequest_Keep{Keep: &KeepWorkload{Uid: "uid0"}}}},
	{"del", "1206120475696430", &WorkloadRequest{Payload: &WorkloadRequest_Del{Del: &DelWorkload{Uid: "uid0"}}}},
	{"snapshot sent", "1a00", snapshotSent()},
	{"ack", "0a00", NewResponse("")},
	{"nack", "0a060a04626f6f6d", NewResponse("boom")},
}

func TestGoldenBytes(t *testing.T) {
	for _, g := range golden {
		t.Run(g.name, func(t *testing.T) {
			b, err := encode(g.message)
			if err != nil {
				t.Fatal(err)
			}
			if got := hex.EncodeToString(b); got != g.hex {
				t.Errorf("encoded as %s, want %s", got, g.hex)
			}
			want, err := hex.DecodeString(g.hex)
			if err != nil {
				t.Fatal(err)
			}
			got := g.message.ProtoReflect().New().Interface()
			if err := decode(want, got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(g.message, got, protocmp.Transform()); diff != "" {
				t.Errorf("decoded (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnknownFieldsAreDropped(t *testing.T) {
	// A request of kind 7, a nack with a field 9 beside its text.
	for in, want := range map[string]proto.Message{
		"3a060a0475696430":          &WorkloadRequest{},
		"0a080a04626f6f6d" + "4801": NewResponse("boom"),
	} {
		b, err := hex.DecodeString(in)
		if err != nil {
			t.Fatal(err)
		}
		got := want.ProtoReflect().New().Interface()
		if err := decode(b, got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
	}
}

func TestTheLongestWorkloadFits(t *testing.T) {
	uid := strings.Repeat("u", 36)
	if _, err := encode(addRequest(uid, strings.Repeat("p", 253), strings.Repeat("n", 63), strings.Repeat("s", 253))); err != nil {
		t.Error(err)
	}
}

func TestNewResponseFitsARecord(t *testing.T) {
	for name, text := range map[string]string{
		"short":            "cannot bind [::1]:15053",
		"just fits":        strings.Repeat("x", MaxRecord-6),
		"one too long":     strings.Repeat("x", MaxRecord-5),
		"far too long":     strings.Repeat("x", 100_000),
		"wide characters":  strings.Repeat("€", 1000),
		"not UTF-8":        "path \xff\xfe",
		"not UTF-8, long":  strings.Repeat("\xff€", 1000),
		"only a bad start": "\xe2",
	} {
		t.Run(name, func(t *testing.T) {
			r := NewResponse(text)
			b, err := encode(r)
			if err != nil {
				t.Fatal(err)
			}
			got := r.GetAck().GetError()
			if !utf8.ValidString(got) || got == "" {
				t.Errorf("text %q", got)
			}
			if len(b) < min(len(text), MaxRecord-3) {
				t.Errorf("%d bytes of text became a record of %d", len(text), len(b))
			}
		})
	}
}
