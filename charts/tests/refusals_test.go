package charts

import (
	"strings"
	"testing"
)

func TestRefusals(t *testing.T) {
	for values, want := range map[string]string{
		"{image: {repository: ''}}":                                                "image.repository: it has no default, since no image is published yet",
		"{dnsCapture: true}":                                                       "at '': additional properties 'dnsCapture' not allowed",
		"{ambient: {dnsCaptrue: true}}":                                            "at '/ambient': additional properties 'dnsCaptrue' not allowed",
		"{ambient: {dnsCapture: 'yes'}}":                                           "at '/ambient/dnsCapture': got string, want boolean",
		"{ambient: {enablementSelectors: [{pods: {}}]}}":                           "at '/ambient/enablementSelectors/0': additional properties 'pods' not allowed",
		"{ambient: {enablementSelectors: [{podSelector: {matchLabels: {a: 1}}}]}}": "at '/ambient/enablementSelectors/0/podSelector/matchLabels/a': got number, want string",
		"{global: {platform: gce}}":                                                "at '/global/platform': value must be one of '', 'gke', 'eks', 'aks', 'k3s', 'k3d', 'microk8s', 'minikube', 'openshift', 'talos'",
		"{cniBinDir: opt/cni/bin}":                                                 "at '/cniBinDir': 'opt/cni/bin' does not match pattern",
		"{cniConfDir: /etc/cni/net.d/}":                                            "at '/cniConfDir': '/etc/cni/net.d/' does not match pattern",
		"{cniCache: ''}":                                                           "at '/cniCache': '' does not match pattern",
		"{excludeNamespaces: kube-system}":                                         "at '/excludeNamespaces': got string, want array",
		"{excludeNamespaces: [Kube]}":                                              "at '/excludeNamespaces/0': 'Kube' does not match pattern",
		"{logging: {level: verbose}}":                                              "at '/logging/level': value must be one of 'debug', 'info', 'warn', 'error'",
		"{logging: {level: 'default:info,cni:debug'}}":                             "at '/logging/level': value must be one of",
		"{httpPort: 0}":                                                            "at '/httpPort': minimum: got 0, want 1",
		"{config: {logLevel: debug}}":                                              "at '/config': additional properties 'logLevel' not allowed",
		"{config: {sweepInterval: 10}}":                                            "at '/config/sweepInterval': got number, want string",
		"{config: {waits: {pdo: 1s}}}":                                             "at '/config/waits': additional properties 'pdo' not allowed",
		"{config: {probes: off}}":                                                  "at '/config/probes': value must be one of 'snat', 'hostIP', 'off'",
		"{config: {existingConnections: drop}}":                                    "at '/config/existingConnections': value must be one of 'reset', 'keep'",
		"{cniStatus: sometimes}":                                                   "at '/cniStatus': value must be one of 'auto', 'always', 'never'",
		"{cniStatus: always, cniMode: chained}":                                    "cniStatus: always needs cniMode: owned: with chained the list, and its version, is the primary's",
		"{cniOrphanAfter: 30}":                                                     "at '/cniOrphanAfter': got number, want string",
		"{node: {taint: off}}":                                                     "at '/node/taint': value must be one of '', 'none', 'remove', 'start', 'unready'",
		"{node: {taints: remove}}":                                                 "at '/node': additional properties 'taints' not allowed",
		"{node: {condition: 'yes'}}":                                               "at '/node/condition': got string, want boolean",
		"{apiServer: {host: localhost}}":                                           "at '/apiServer/port': minLength: got 0, want 1",
		"{apiServer: {port: 7445}}":                                                "at '/apiServer/port': value must be ''",
		"{updateStrategy: {type: Recreate}}":                                       "at '/updateStrategy/type': value must be one of 'RollingUpdate', 'OnDelete'",
		"{updateStrategy: {rollingUpdate: {maxUnavailable: 0}}}":                   "at '/updateStrategy/rollingUpdate/maxUnavailable': minimum: got 0, want 1",
		"{updateStrategy: {rollingUpdate: {maxSurge: 1}}}":                         "at '/updateStrategy/rollingUpdate': additional properties 'maxSurge' not allowed",
		"{tolerations: [{operator: exists}]}":                                      "at '/tolerations/0/operator': value must be one of",
		"{podLabels: {a: true}}":                                                   "at '/podLabels/a': got boolean, want string",
		"{uninstall: {affinity: {nodes: {}}}}":                                     "at '/uninstall/affinity': additional properties 'nodes' not allowed",
		"{image: {digest: latest}}":                                                "at '/image/digest': 'latest' does not match pattern",
		"{seccompProfile: {type: Default}}":                                        "at '/seccompProfile/type': value must be one of 'RuntimeDefault', 'Unconfined', 'Localhost'",
	} {
		_, err := installation{values: values}.render()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v\nwant an error that says %s", values, err, want)
		}
	}
}

func TestRefusalsOfTheProxy(t *testing.T) {
	for values, want := range map[string]string{
		"{image: {repository: ''}}": "image.repository: it has no default",
		"{drian: 5s}":               "at '': additional properties 'drian' not allowed",
		"{drain: 5}":                "at '/drain': got number, want string",
		"{refuseUntagged: 'no'}":    "at '/refuseUntagged': got string, want boolean",
	} {
		_, err := installation{chart: "nodeproxy", values: values}.render()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v\nwant an error that says %s", values, err, want)
		}
	}
}

// Policies need Kubernetes 1.30; all else does without.
func TestOlderKubernetes(t *testing.T) {
	for values, then := range map[string]string{
		"":                          "the status of pods on any node",
		"{node: {taint: remove}}":   "the status of pods on any node, and nodes",
		"{node: {condition: true}}": "the status of pods on any node, and nodes",
		"{global: {platform: gke}}": "the status of pods on any node, and nodes",
	} {
		_, err := installation{kube: "v1.29.4-gke.100", values: values}.render()
		want := "admissionPolicies.enabled: Kubernetes v1.29.4-gke.100 has no ValidatingAdmissionPolicy; set it to false, and the agent's token may then write " + then
		if err == nil || !strings.HasSuffix(strings.TrimSpace(err.Error()), want) {
			t.Errorf("%q: got %v\nwant an error that ends with %s", values, err, want)
		}
	}
	for key := range (installation{kube: "v1.29.4-gke.100", values: "{admissionPolicies: {enabled: false}}"}).objects(t) {
		if strings.HasPrefix(key, "ValidatingAdmissionPolicy") {
			t.Errorf("there is a %s", key)
		}
	}
	installation{kube: "v1.30.0-eks-1"}.objects(t)
}

// What is common to all charts of a release is not ours to refuse.
func TestOthersGlobals(t *testing.T) {
	installation{values: "{global: {hub: example.test, platform: gke}}"}.objects(t)
}
