package nlconn

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// An Attr is a netlink attribute: Kind without the flags for nesting and byte order.
type Attr struct {
	Kind  uint16
	Value []byte
}

// Attrs are a run of attributes, in the kernel's order.
type Attrs []Attr

// ParseAttrs reads a run of attributes. The values are parts of b; the one of a
// nested attribute is a run itself.
func ParseAttrs(b []byte) (Attrs, error) {
	const kindMask = 0x3fff // NLA_TYPE_MASK
	if len(b) == 0 {
		return nil, nil
	}
	attrs := make(Attrs, 0, 8) // few messages have more
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return nil, fmt.Errorf("netlink attribute says it has %d bytes, of %d", size, len(b))
		}
		attrs = append(attrs, Attr{
			Kind:  binary.NativeEndian.Uint16(b[2:]) & kindMask,
			Value: b[unix.SizeofNlAttr:size],
		})
		b = b[min(align(size), len(b)):]
	}
	if len(b) != 0 {
		return nil, fmt.Errorf("netlink attributes are followed by %d bytes", len(b))
	}
	return attrs, nil
}

// Value is the value of the first attribute of a kind, nil if there is none.
func (a Attrs) Value(kind uint16) []byte {
	for i := range a {
		if a[i].Kind == kind {
			return a[i].Value
		}
	}
	return nil
}

// Text is a value that ends with a zero byte, "" if there is none.
func (a Attrs) Text(kind uint16) string { return unix.ByteSliceToString(a.Value(kind)) }

// AppendAttr appends an attribute to a request. If the value is a run of attributes,
// kind has the flag NLA_F_NESTED.
func AppendAttr(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, align(len(value))-len(value))...)
}

// AppendText appends an attribute that is a text, with a zero byte at its end.
func AppendText(b []byte, kind uint16, text string) []byte {
	return AppendAttr(b, kind, append([]byte(text), 0))
}

// AppendUint32 appends an attribute that is a number in the host's byte order.
func AppendUint32(b []byte, kind uint16, value uint32) []byte {
	return AppendAttr(b, kind, binary.NativeEndian.AppendUint32(nil, value))
}

// Uint32 is the attribute's value as a number in the host's byte order.
func (a Attr) Uint32() (uint32, error) {
	if len(a.Value) != 4 {
		return 0, fmt.Errorf("netlink attribute %d has %d bytes, not 4", a.Kind, len(a.Value))
	}
	return binary.NativeEndian.Uint32(a.Value), nil
}

// align rounds up to the 4 bytes that netlink aligns everything to.
func align(n int) int { return (n + 3) &^ 3 }
