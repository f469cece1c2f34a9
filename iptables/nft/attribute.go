package nft

import (
	"encoding/binary"
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

const attributeHeader = unix.SizeofNlAttr

// builder appends netlink attributes.
type builder []byte

func (b *builder) bytes(kind uint16, data []byte) {
	*b = binary.NativeEndian.AppendUint16(*b, uint16(attributeHeader+len(data)))
	*b = binary.NativeEndian.AppendUint16(*b, kind)
	*b = append(*b, data...)
	for len(*b)%unix.NLA_ALIGNTO != 0 {
		*b = append(*b, 0)
	}
}

func (b *builder) text(kind uint16, text string) { b.bytes(kind, append([]byte(text), 0)) }

func (b *builder) uint32(kind uint16, n uint32) {
	b.bytes(kind, binary.BigEndian.AppendUint32(nil, n))
}

func (b *builder) nested(kind uint16, inner builder) { b.bytes(kind|unix.NLA_F_NESTED, inner) }

// each calls fn with the attributes in b, in their order.
func each(b []byte, fn func(kind uint16, data []byte) error) error {
	for len(b) >= attributeHeader {
		size := int(binary.NativeEndian.Uint16(b))
		if size < attributeHeader || size > len(b) {
			return errors.New("malformed netlink attribute")
		}
		kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		if err := fn(kind, b[attributeHeader:size]); err != nil {
			return err
		}
		b = b[min(len(b), (size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
	}
	return nil
}

// attributes are those of one object, where each stands once.
type attributes map[uint16][]byte

func decode(b []byte) (attributes, error) {
	a := make(attributes)
	err := each(b, func(kind uint16, data []byte) error {
		a[kind] = data
		return nil
	})
	return a, err
}

func (a attributes) text(kind uint16) string { return strings.TrimRight(string(a[kind]), "\x00") }

// uint32 is 0 for what is not there.
func (a attributes) uint32(kind uint16) uint32 {
	if len(a[kind]) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(a[kind])
}
