package cluster

import "testing"

// As a runtime writes it: two conditions, of which the second is the network's.
func TestNetworkReady(t *testing.T) {
	const runtime = "\x0a\x28\x0a\x12\x0a\x0cRuntimeReady\x10\x01"
	for _, test := range []struct{ name, status, want string }{
		{"ready", runtime + "\x0a\x10\x0a\x0cNetworkReady\x10\x01", "true"},
		{"not ready, and why", runtime + "\x0a\x12\x0a\x0cNetworkReady\x1a\x02no", "false"},
		{"not ready", runtime + "\x0a\x0e\x0a\x0cNetworkReady", "false"},
		{"not a word of it", runtime, "it does not say whether the network is ready"},
	} {
		ready, err := networkReady([]byte(test.status))
		got := map[bool]string{true: "true", false: "false"}[ready]
		if err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}
