package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
)

// documents is what one file holds.
type documents struct {
	pods       []intent.Pod
	namespaces []intent.Namespace
}

// parse reads a file's documents: all of them, or none.
func parse(text []byte) (documents, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return documents{}, errors.New("the file is empty (remove it to remove its pods)")
	}
	var docs documents
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for n := 1; ; n++ {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err == nil {
			err = docs.add(doc)
		}
		if err != nil {
			return documents{}, fmt.Errorf("document %d: %w", n, err)
		}
	}
}

// add reads one document; an empty one, or one of comments only, is nothing.
func (d *documents) add(doc []byte) error {
	var head *metav1.TypeMeta
	if err := yaml.Unmarshal(doc, &head); err != nil {
		return fmt.Errorf("not YAML: %w", err)
	}
	if head == nil {
		return nil
	}
	switch head.APIVersion + " " + head.Kind {
	case "v1 Pod":
		return d.addPod(doc)
	case "v1 Namespace":
		var ns corev1.Namespace
		if err := yaml.UnmarshalStrict(doc, &ns); err != nil {
			return fmt.Errorf("not a Namespace: %w", err)
		}
		if ns.Name == "" {
			return errors.New("a Namespace without metadata.name")
		}
		d.namespaces = append(d.namespaces, intent.Namespace{Name: ns.Name, Labels: ns.Labels, Annotations: ns.Annotations})
		return nil
	default:
		return fmt.Errorf("apiVersion %q, kind %q: only v1 Pod and v1 Namespace are read here", head.APIVersion, head.Kind)
	}
}

func (d *documents) addPod(doc []byte) error {
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict(doc, &pod); err != nil {
		return fmt.Errorf("not a Pod: %w", err)
	}
	if pod.Name == "" {
		return errors.New("a Pod without metadata.name")
	}
	p := intent.Pod{
		Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID),
		ServiceAccount: pod.Spec.ServiceAccountName,
		Labels:         pod.Labels, Annotations: pod.Annotations,
		HostNetwork: pod.Spec.HostNetwork, Phase: string(pod.Status.Phase),
	}
	if p.Namespace == "" {
		p.Namespace = metav1.NamespaceDefault
	}
	if p.ServiceAccount == "" {
		p.ServiceAccount = "default"
	}
	for _, ip := range pod.Status.PodIPs {
		addr, err := netip.ParseAddr(ip.IP)
		if err != nil {
			return fmt.Errorf("pod %s/%s: status.podIPs: %w", p.Namespace, p.Name, err)
		}
		p.IPs = append(p.IPs, addr)
	}
	d.pods = append(d.pods, p)
	return nil
}
