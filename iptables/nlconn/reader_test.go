package nlconn

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const testSeq = 7

func datagram(kind, flags uint16, seq uint32, payload ...byte) []byte {
	b := append(appendHeader(nil, kind, flags, seq, len(payload)), payload...)
	return append(b, make([]byte, align(len(b))-len(b))...)
}

func code(n int32) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }

// readAll reads datagrams as the answer to request 7.
func readAll(single bool, datagrams ...[]byte) (replies []string, err error) {
	a := answer{seq: testSeq, single: single, each: func(b []byte) error {
		replies = append(replies, string(b))
		return nil
	}}
	for _, d := range datagrams {
		if err := split(d, a.take); err != nil {
			return replies, err
		}
	}
	return replies, a.outcome()
}

func TestReader(t *testing.T) {
	const multi, interrupted = unix.NLM_F_MULTI, unix.NLM_F_MULTI | unix.NLM_F_DUMP_INTR
	reply := func(seq uint32, flags uint16, text string) []byte { return datagram(20, flags, seq, []byte(text)...) }
	end := datagram(unix.NLMSG_DONE, multi, testSeq, code(0)...)
	for name, c := range map[string]struct {
		single    bool
		datagrams [][]byte
		replies   string
		err       error
	}{
		"one reply":           {true, [][]byte{reply(7, 0, "one")}, "one", nil},
		"nothing yet":         {true, nil, "", errNoAnswer},
		"dump":                {false, [][]byte{append(reply(7, multi, "one"), reply(7, multi, "two")...), end}, "one two", nil},
		"unfinished dump":     {false, [][]byte{reply(7, multi, "one")}, "one", errNoAnswer},
		"empty dump":          {false, [][]byte{end}, "", nil},
		"end without a code":  {false, [][]byte{datagram(unix.NLMSG_DONE, multi, testSeq)}, "", nil},
		"older reply":         {true, [][]byte{reply(6, 0, "old"), reply(7, 0, "new")}, "new", nil},
		"older error":         {true, [][]byte{datagram(unix.NLMSG_ERROR, 0, 6, code(-1)...), reply(7, 0, "new")}, "new", nil},
		"no operation":        {true, [][]byte{datagram(unix.NLMSG_NOOP, 0, testSeq), reply(7, 0, "one")}, "one", nil},
		"acknowledged":        {false, [][]byte{datagram(unix.NLMSG_ERROR, 0, testSeq, code(0)...)}, "", nil},
		"refused":             {false, [][]byte{datagram(unix.NLMSG_ERROR, 0, testSeq, code(-1)...)}, "", unix.EPERM},
		"dump that failed":    {false, [][]byte{reply(7, multi, "one"), datagram(unix.NLMSG_DONE, multi, testSeq, code(-2)...)}, "one", unix.ENOENT},
		"interrupted":         {false, [][]byte{reply(7, interrupted, "one"), reply(7, interrupted, "two"), end}, "one two", ErrInterrupted},
		"interrupted by word": {false, [][]byte{datagram(unix.NLMSG_DONE, multi, testSeq, code(-4)...)}, "", ErrInterrupted},
		"interrupted, failed": {false, [][]byte{reply(7, interrupted, "one"), datagram(unix.NLMSG_DONE, multi, testSeq, code(-2)...)}, "one", unix.ENOENT},
		"reply after the end": {false, [][]byte{datagram(unix.NLMSG_ERROR, 0, testSeq, code(-1)...), reply(7, 0, "late")}, "", unix.EPERM},
		"interrupted at end":  {false, [][]byte{datagram(unix.NLMSG_DONE, interrupted, testSeq, code(0)...)}, "", ErrInterrupted},
	} {
		replies, err := readAll(c.single, c.datagrams...)
		if got := strings.Join(replies, " "); got != c.replies || !errors.Is(err, c.err) || c.err == nil && err != nil {
			t.Errorf("%s: %q, %v; want %q, %v", name, got, err, c.replies, c.err)
		}
	}
}

func TestReaderRefusesWrongShapes(t *testing.T) {
	size := func(b []byte, n uint32) []byte {
		b = bytes.Clone(b)
		binary.NativeEndian.PutUint32(b, n)
		return b
	}
	whole := datagram(20, 0, testSeq, 1, 2, 3, 4)
	for name, d := range map[string][]byte{
		"half a header":     whole[:9],
		"size 0":            size(whole, 0),
		"less than header":  size(whole, 15),
		"more than is here": size(whole, 21),
		"enormous":          size(whole, 0xffffffff),
		"cut":               whole[:len(whole)-1],
		"short error":       datagram(unix.NLMSG_ERROR, 0, testSeq, 1, 2),
		"positive error":    datagram(unix.NLMSG_ERROR, 0, testSeq, code(5)...),
	} {
		if replies, err := readAll(true, d); err == nil || len(replies) != 0 {
			t.Errorf("%s: %q, %v", name, replies, err)
		}
	}
}

func TestExplanation(t *testing.T) {
	const tlvs, capped = 0x200, 0x100
	text := AppendAttr(nil, 1, []byte("because\x00"))
	echo := appendHeader(nil, 24, 0, testSeq, 8)
	long := append(append(append(code(-22), echo...), make([]byte, 8)...), text...)
	short := append(append(code(-22), echo...), text...)
	for name, c := range map[string]struct {
		payload []byte
		flags   uint16
		want    string
	}{
		"capped":            {short, tlvs | capped, "because"},
		"whole request":     {long, tlvs, "because"},
		"none":              {short[:20], 0, ""},
		"announced, absent": {short[:20], tlvs | capped, ""},
		"nothing else":      {short[:4], tlvs | capped, ""},
		"request cut":       {long[:24], tlvs, ""},
		"a false length":    {append(code(-22), bytes.Repeat([]byte{0x7f}, 16)...), tlvs, ""},
		"attribute cut":     {short[:26], tlvs | capped, ""},
		"other attribute":   {append(append(code(-22), echo...), AppendAttr(nil, 2, []byte("x"))...), tlvs | capped, ""},
	} {
		want := "invalid argument"
		if c.want != "" {
			want += " (" + c.want + ")"
		}
		err := message{kind: unix.NLMSG_ERROR, flags: c.flags, payload: c.payload}.failure()
		if !errors.Is(err, unix.EINVAL) || err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

func TestAttrs(t *testing.T) {
	b := AppendUint32(AppendAttr(nil, 0x8000|3, []byte("abcde")), 9, 77)
	attrs, err := ParseAttrs(b)
	if err != nil || len(attrs) != 2 || attrs[0].Kind != 3 || string(attrs[0].Value) != "abcde" || attrs[1].Kind != 9 {
		t.Fatalf("%+v, %v", attrs, err)
	}
	if n, err := attrs[1].Uint32(); n != 77 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if attrs.Value(9) == nil || attrs.Value(8) != nil || attrs.Text(3) != "abcde" || attrs.Text(8) != "" {
		t.Errorf("values %v, %v, texts %q, %q", attrs.Value(9), attrs.Value(8), attrs.Text(3), attrs.Text(8))
	}
	if _, err := attrs[0].Uint32(); err == nil {
		t.Error("5 bytes were taken for a number")
	}
	inner := AppendText(AppendText(nil, 1, "abc"), 1, "") // of a multiple of 4 bytes, and none
	outer, err := ParseAttrs(AppendAttr(nil, unix.NLA_F_NESTED|2, inner))
	if err != nil || !bytes.Equal(outer.Value(2), inner) {
		t.Fatalf("%+v, %v", outer, err)
	}
	texts, err := ParseAttrs(outer.Value(2))
	if err != nil || len(texts) != 2 || texts.Text(1) != "abc" || string(texts[1].Value) != "\x00" {
		t.Errorf("%+v, %v", texts, err)
	}
	for _, bad := range [][]byte{{1}, {4, 0, 1}, {3, 0, 1, 0}, {3, 0, 1, 0, 0}, {200, 0, 1, 0}, {5, 0, 1, 0}, {255, 255, 1, 0, 0}} {
		if attrs, err := ParseAttrs(bad); err == nil {
			t.Errorf("%v was taken for %+v", bad, attrs)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add(datagram(20, unix.NLM_F_MULTI, testSeq, 1, 2, 3), false)
	f.Add(datagram(unix.NLMSG_ERROR, 0x300, testSeq, append(code(-22), appendHeader(nil, 1, 0, 1, 0)...)...), true)
	f.Add(datagram(unix.NLMSG_DONE, 0, testSeq, code(0)...), false)
	f.Fuzz(func(t *testing.T, d []byte, single bool) {
		total := 0
		a := answer{seq: testSeq, single: single, each: func(b []byte) error {
			total += len(b)
			_, err := ParseAttrs(b)
			return err
		}}
		v := verdict{first: testSeq, messages: 1}
		err := errors.Join(split(d, a.take), a.outcome(), split(d, v.take))
		if err == nil && total > len(d) {
			t.Errorf("%d bytes of replies out of %d", total, len(d))
		}
	})
}
