package nft

import (
	"bytes"
	"encoding/binary"
	"errors"

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

// attributes are those of one object, where each kind stands once.
type attributes []attribute

type attribute struct {
	kind uint16
	data []byte
}

func decode(b []byte) (attributes, error) {
	a := make(attributes, 0, 8) // few objects have more
	err := each(b, func(kind uint16, data []byte) error {
		a = append(a, attribute{kind, data})
		return nil
	})
	return a, err
}

// get says also whether the attribute is there at all.
func (a attributes) get(kind uint16) ([]byte, bool) {
	for i := range a {
		if a[i].kind == kind {
			return a[i].data, true
		}
	}
	return nil, false
}

func (a attributes) bytes(kind uint16) []byte {
	data, _ := a.get(kind)
	return data
}

func (a attributes) text(kind uint16) string {
	return string(bytes.TrimRight(a.bytes(kind), "\x00"))
}

// uint32 is 0 for what is not there.
func (a attributes) uint32(kind uint16) uint32 {
	data := a.bytes(kind)
	if len(data) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(data)
}
