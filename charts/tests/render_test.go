package charts

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// An installation is what is given to helm install.
type installation struct {
	chart  string // fairlead, unless it is said
	values string // YAML
	kube   string // the cluster's version

	cluster string // the address of its API; empty: there is none, as with helm template
	upgrade bool   // it is given to helm upgrade
}

const someImage = "{image: {repository: example.test/fairlead}}"

// render returns the rendered files by their names, and what is said of them.
func (i installation) render() (map[string]string, error) {
	if i.chart == "" {
		i.chart = "fairlead"
	}
	c, err := loader.LoadDir("../" + i.chart)
	if err != nil {
		return nil, err
	}
	set := map[string]any{}
	for _, text := range []string{someImage, i.values} {
		more := map[string]any{}
		if err := yaml.UnmarshalStrict([]byte(text), &more); err != nil {
			return nil, err
		}
		set = util.MergeTables(more, set)
	}
	capabilities := common.DefaultCapabilities.Copy()
	if i.kube == "" {
		i.kube = "v1.37.2"
	}
	version, err := common.ParseKubeVersion(i.kube)
	if err != nil {
		return nil, err
	}
	capabilities.KubeVersion = *version
	release := common.ReleaseOptions{Name: "fairlead", Namespace: "fairlead-system", IsInstall: !i.upgrade, IsUpgrade: i.upgrade, Revision: 1}
	values, err := util.ToRenderValues(c, set, release, capabilities)
	if err != nil {
		return nil, err
	}
	if i.cluster != "" {
		return engine.RenderWithClient(c, values, &rest.Config{Host: i.cluster})
	}
	return engine.Render(c, values)
}

// rendered returns the files that are given to the API server, one after the other, and
// the notes.
func (i installation) rendered(t *testing.T) (manifests, notes string) {
	t.Helper()
	files, err := i.render()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		switch text := strings.TrimSpace(files[name]); {
		case strings.HasSuffix(name, "NOTES.txt"):
			notes = text + "\n"
		case text != "":
			manifests += "---\n# " + name + "\n" + text + "\n"
		}
	}
	return manifests, notes
}

// An object is a Kubernetes object, as it is read from YAML.
type object map[string]any

// objects returns what is rendered, by kind and name. A key that stands twice fails.
func (i installation) objects(t *testing.T) map[string]object {
	t.Helper()
	manifests, _ := i.rendered(t)
	found := map[string]object{}
	for _, text := range strings.Split(manifests, "\n---\n") {
		o := object{}
		if err := yaml.UnmarshalStrict([]byte(text), &o); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		key := fmt.Sprintf("%s %s", o["kind"], o.at("metadata", "name"))
		if found[key] != nil {
			t.Fatalf("%s is rendered twice", key)
		}
		found[key] = o
	}
	return found
}

// at returns what stands at a path of keys and indices, or nil.
func (o object) at(path ...any) any {
	var here any = map[string]any(o)
	for _, step := range path {
		switch inside := here.(type) {
		case map[string]any:
			key, _ := step.(string)
			here = inside[key]
		case []any:
			index, ok := step.(int)
			if !ok || index >= len(inside) {
				return nil
			}
			here = inside[index]
		default:
			return nil
		}
	}
	return here
}

// text is a value as YAML.
func text(t *testing.T, value any) string {
	t.Helper()
	out, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

const (
	daemonSet = "DaemonSet fairlead"
	configMap = "ConfigMap fairlead"
)
