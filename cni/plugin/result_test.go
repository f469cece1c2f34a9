package plugin

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Results of one pod in each version, with a key that the library drops.
var results = map[string]string{
	"0.3.1": `{"cniVersion":"0.3.1", "ips":[{"version":"4","address":"10.1.2.3/24"},{"version":"6","address":"fd00::3/64"}],"x":[1]}`,
	"0.4.0": `{"cniVersion":"0.4.0", "ips":[{"version":"4","address":"10.1.2.3/24"},{"version":"6","address":"fd00::3/64"}],"x":[1]}`,
	"1.0.0": `{"cniVersion":"1.0.0", "ips":[{"address":"10.1.2.3/24"},{"address":"fd00::3/64"}],"x":[1]}`,
	"1.1.0": `{"cniVersion":"1.1.0", "ips":[{"address":"10.1.2.3/24"},{"address":"fd00::3/64"}],"x":[1]}`,
}

func TestReadPreviousInAllVersions(t *testing.T) {
	wantIPs := []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")}
	for of, result := range results {
		for as := range results {
			t.Run(of+" as "+as, func(t *testing.T) {
				got, err := readPrevious(&config{CNIVersion: as, PrevResult: json.RawMessage(result)})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(wantIPs, got.ips, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
					t.Errorf("addresses (-want +got):\n%s", diff)
				}
				if of == as {
					if string(got.print) != result {
						t.Errorf("the bytes changed:\n%s\n%s", result, got.print)
					}
					return
				}
				if again, err := readPrevious(&config{CNIVersion: as, PrevResult: got.print}); err != nil || len(again.ips) != 2 {
					t.Errorf("converted to %s: %v", got.print, err)
				}
				if !strings.Contains(string(got.print), `"cniVersion":"`+as+`"`) {
					t.Errorf("converted to %s", got.print)
				}
			})
		}
	}
}

func TestResultWithoutAVersionHasTheConfigurations(t *testing.T) {
	for version := range results {
		raw := `{"ips":[{"version":"4","address":"10.1.2.3/24"}] }`
		got, err := readPrevious(&config{CNIVersion: version, PrevResult: json.RawMessage(raw)})
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		if string(got.print) != raw || len(got.ips) != 1 {
			t.Errorf("%s: got %s, %v", version, got.print, got.ips)
		}
	}
}

func TestAddressesInsideTheSandbox(t *testing.T) {
	tests := map[string]struct {
		result string
		want   []string
	}{
		"none":                 {`{}`, nil},
		"no interface named":   {`{"ips":[{"address":"10.0.0.1/24"}]}`, []string{"10.0.0.1"}},
		"at the host's end":    {`{"interfaces":[{"name":"veth"}],"ips":[{"address":"10.0.0.1/24","interface":0}]}`, nil},
		"index out of range":   {`{"ips":[{"address":"10.0.0.1/24","interface":5}]}`, []string{"10.0.0.1"}},
		"negative index":       {`{"ips":[{"address":"10.0.0.1/24","interface":-1}]}`, []string{"10.0.0.1"}},
		"mapped":               {`{"ips":[{"address":"::ffff:10.0.0.1/120"}]}`, []string{"10.0.0.1"}},
		"of a second network":  {`{"interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"10.0.0.1/24","interface":0},{"address":"fd00::1/64"}]}`, []string{"10.0.0.1", "fd00::1"}},
		"an empty address":     {`{"ips":[{"address":""}]}`, nil},
		"null among the items": {`{"interfaces":[null],"ips":[null,{"address":"10.0.0.1/24","interface":0}]}`, []string{"10.0.0.1"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			before, err := readPrevious(&config{CNIVersion: "1.0.0", PrevResult: json.RawMessage(tt.result)})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, ip := range before.ips {
				got = append(got, ip.String())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestConvertSurvivesTheLibrary(t *testing.T) {
	_, err := readPrevious(&config{CNIVersion: "0.4.0", PrevResult: json.RawMessage(`{"cniVersion":"1.0.0","ips":[null]}`)})
	if err == nil || !strings.Contains(err.Error(), "it is malformed") {
		t.Errorf("got %v, want an error", err)
	}
}
