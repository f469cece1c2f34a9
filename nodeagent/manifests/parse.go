package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/strictyaml"
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
func (d *documents) add(text []byte) error {
	doc, err := strictyaml.Parse(text)
	if err != nil || doc.Empty() {
		return err
	}
	switch version, kind := doc.Text("apiVersion"), doc.Text("kind"); version + " " + kind {
	case "v1 Pod":
		return d.addPod(doc)
	case "v1 Namespace":
		return d.addNamespace(doc)
	default:
		return fmt.Errorf("apiVersion %q, kind %q: only v1 Pod and v1 Namespace are read here", version, kind)
	}
}

// decode reads a document strictly. Its error is one line, for a list of problems.
func decode(doc *strictyaml.Document, into any) error {
	var texts []string
	for _, problem := range doc.Decode(into) {
		texts = append(texts, problem.Error())
	}
	if texts == nil {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}

func (d *documents) addNamespace(doc *strictyaml.Document) error {
	var ns corev1.Namespace
	if err := decode(doc, &ns); err != nil {
		return fmt.Errorf("not a Namespace: %w", err)
	}
	if ns.Name == "" {
		return errors.New("a Namespace without metadata.name")
	}
	d.namespaces = append(d.namespaces, intent.Namespace{Name: ns.Name, Labels: ns.Labels, Annotations: ns.Annotations})
	return nil
}

func (d *documents) addPod(doc *strictyaml.Document) error {
	var pod corev1.Pod
	if err := decode(doc, &pod); err != nil {
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
	if class := pod.Spec.RuntimeClassName; class != nil {
		p.RuntimeClass = *class
	}
	if p.ServiceAccount == "" {
		p.ServiceAccount = "default"
	}
	for _, ip := range pod.Status.PodIPs {
		addr, err := netip.ParseAddr(ip.IP)
		if err != nil {
			return fmt.Errorf("pod %s/%s: status.podIPs: %q is not an IP address", p.Namespace, p.Name, ip.IP)
		}
		p.IPs = append(p.IPs, addr)
	}
	d.pods = append(d.pods, p)
	return nil
}
