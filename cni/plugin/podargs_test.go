package plugin

import (
	"strings"
	"testing"
)

func TestParsePodArgs(t *testing.T) {
	pod := podArgs{"shop", "web-0", "u"}
	tests := map[string]struct {
		args string
		want podArgs
	}{
		"empty":                {"", podArgs{}},
		"containerd's":         {"IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_UID=u", pod},
		"another order":        {"K8S_POD_UID=u;K8S_POD_NAME=web-0;IgnoreUnknown=1;K8S_POD_NAMESPACE=shop", pod},
		"unknown, unannounced": {"FOO=1;K8S_POD_UID=u;K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=shop", pod},
		"odd separators":       {";;K8S_POD_UID=u;K8S_POD_NAME=web-0;x;=;K8S_POD_NAMESPACE=shop;", pod},
		"the same twice":       {"K8S_POD_UID=u;K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=shop;K8S_POD_UID=u", pod},
		"equals sign":          {"K8S_POD_UID=u=v;K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=shop", podArgs{"shop", "web-0", "u=v"}},
		"a UID alone":          {"K8S_POD_UID=u", podArgs{uid: "u"}},
		"empty values":         {"K8S_POD_NAMESPACE=;K8S_POD_NAME=;K8S_POD_UID=", podArgs{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parsePodArgs(tt.args)
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestParsePodArgsRefuses(t *testing.T) {
	for args, says := range map[string]string{
		"K8S_POD_NAME=a;K8S_POD_NAME=b":                    `K8S_POD_NAME twice, "a" and "b"`,
		"K8S_POD_NAME=a;K8S_POD_UID=u":                     "no K8S_POD_NAMESPACE",
		"K8S_POD_NAMESPACE=a;K8S_POD_UID=u":                "no K8S_POD_NAME",
		"K8S_POD_NAMESPACE=a;K8S_POD_NAME=b":               "no K8S_POD_UID",
		"k8s_pod_uid=u;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b": "no K8S_POD_UID",
	} {
		if _, err := parsePodArgs(args); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want %q", args, err, says)
		}
	}
}

func FuzzPodArgs(f *testing.F) {
	f.Add(podArgsText)
	f.Add(";=;K8S_POD_NAME==;K8S_POD_NAME")
	f.Fuzz(func(t *testing.T, args string) {
		pod, err := parsePodArgs(args)
		if err != nil || !pod.isPod() {
			return
		}
		again, err := parsePodArgs("K8S_POD_UID=" + pod.uid + ";K8S_POD_NAME=" + pod.name + ";K8S_POD_NAMESPACE=" + pod.namespace)
		if err != nil || again != pod {
			t.Fatalf("%q: %+v is read back as %+v, %v", args, pod, again, err)
		}
		for _, part := range []string{pod.namespace, pod.name, pod.uid} {
			if part == "" || strings.Contains(part, ";") {
				t.Fatalf("%q: %+v", args, pod)
			}
		}
	})
}
