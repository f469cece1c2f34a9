package ztunnelproto

import (
	"encoding/hex"
	"errors"
	"io"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// FuzzRecord sends any record with any number of descriptors through a real
// socket: Receive must not panic, and must leave open what it returns and no more.
func FuzzRecord(f *testing.F) {
	for _, g := range golden {
		b, err := hex.DecodeString(g.hex)
		if err != nil {
			f.Fatal(err)
		}
		for n := range uint8(4) {
			f.Add(b, n)
		}
	}
	f.Add([]byte{}, uint8(1))
	f.Add(make([]byte, MaxRecord+1), uint8(0))
	null := devNull(f)
	f.Fuzz(func(t *testing.T, record []byte, files uint8) {
		if len(record) > 4*MaxRecord {
			return // more than the socket takes
		}
		for _, m := range []proto.Message{&ZdsHello{}, &WorkloadRequest{}, &WorkloadResponse{}} {
			c, peer := rawPair(t)
			checkFDs(t, func() {
				sendRecord(t, peer, record, repeat(null, int(files%6)))
				received, err := c.Receive(m)
				if len(record) == 0 && err != io.EOF {
					t.Errorf("an empty record is %v", err)
				}
				if err == nil && (received != nil) != (files%6 == 1) {
					t.Errorf("%d descriptors sent, received %v", files%6, received)
				}
				if received != nil {
					if closeErr := received.Close(); err != nil || closeErr != nil {
						t.Errorf("a file with an error: %v", errors.Join(err, closeErr))
					}
				}
			})
			if err := errors.Join(unix.Close(peer), c.Close()); err != nil {
				t.Error(err)
			}
		}
	})
}
