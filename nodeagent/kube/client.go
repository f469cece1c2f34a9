package kube

import (
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
)

// A Client speaks to the API server. It knows the few kinds that the agent needs: a
// client for every kind of Kubernetes takes more memory than the rest of the agent.
type Client struct {
	host       string
	core       *rest.RESTClient
	events     *rest.RESTClient
	node       *rest.RESTClient
	metadata   metadata.Interface
	parameters runtime.ParameterCodec
}

// What the agent may ask of the API server: a node's pods may all start at once, and a
// cluster's agents too.
const (
	requestsPerSecond = 10
	requestBurst      = 50
)

// NewClient returns a client for the cluster that the kubeconfig file names, or, without
// one, for the cluster that the agent runs in.
func NewClient(kubeconfig, version string) (*Client, error) {
	var config *rest.Config
	var err error
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	} else {
		config, err = rest.InClusterConfig()
	}
	switch {
	case errors.Is(err, rest.ErrNotInCluster):
		return nil, errors.New("cannot reach the Kubernetes API: the agent does not run in a pod; " +
			"name a kubeconfig file in the configuration (kubeconfig), or a directory of manifests (--pods-from)")
	case err != nil:
		return nil, fmt.Errorf("cannot reach the Kubernetes API: %w", err)
	}
	return newClient(config, version)
}

func newClient(config *rest.Config, version string) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), eventsv1.AddToScheme(scheme), nodev1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.UserAgent = "fairlead/" + version
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(requestsPerSecond, requestBurst)
	config.WarningHandlerWithContext = rest.NoWarnings{}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType = runtime.ContentTypeJSON
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON

	connection, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the Kubernetes API: %w", err)
	}
	c := &Client{host: config.Host, parameters: runtime.NewParameterCodec(scheme)}
	if c.core, err = restClient(config, connection, "/api", corev1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	if c.events, err = restClient(config, connection, "/apis", eventsv1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	if c.node, err = restClient(config, connection, "/apis", nodev1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	c.metadata, err = metadata.NewForConfigAndClient(config, connection)
	return c, err
}

func restClient(config *rest.Config, connection *http.Client, path string, gv schema.GroupVersion) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = path, &gv
	return rest.RESTClientForConfigAndClient(config, connection)
}
