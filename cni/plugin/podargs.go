package plugin

import (
	"errors"
	"fmt"
	"strings"
)

// podArgs is the pod that CNI_ARGS names.
type podArgs struct {
	namespace, name, uid string
}

// parsePodArgs reads CNI_ARGS: KEY=VALUE pairs, joined by semicolons in any
// order. What is not about the pod is ignored, whether IgnoreUnknown asks for
// that or not: arguments that we do not use are no reason to stop a pod. A
// sandbox that is no pod has neither namespace nor name.
func parsePodArgs(s string) (podArgs, error) {
	var pod podArgs
	keys := map[string]*string{
		"K8S_POD_NAMESPACE": &pod.namespace,
		"K8S_POD_NAME":      &pod.name,
		"K8S_POD_UID":       &pod.uid,
	}
	for pair := range strings.SplitSeq(s, ";") {
		key, value, _ := strings.Cut(pair, "=")
		field := keys[key]
		if field == nil || value == *field {
			continue
		}
		if *field != "" {
			return podArgs{}, fmt.Errorf("CNI_ARGS has %s twice, %q and %q", key, *field, value)
		}
		*field = value
	}
	if pod.isPod() {
		return pod, pod.complete()
	}
	return pod, nil
}

func (p podArgs) isPod() bool { return p.namespace != "" || p.name != "" }

func (p podArgs) complete() error {
	switch {
	case p.namespace == "":
		return errors.New("CNI_ARGS has K8S_POD_NAME but no K8S_POD_NAMESPACE")
	case p.name == "":
		return errors.New("CNI_ARGS has K8S_POD_NAMESPACE but no K8S_POD_NAME")
	case p.uid == "":
		return errors.New("CNI_ARGS has no K8S_POD_UID; containerd passes it since 1.5.3, CRI-O since 1.22")
	}
	return nil
}

func (p podArgs) String() string { return p.namespace + "/" + p.name }
