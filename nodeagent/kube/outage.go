package kube

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// An outage knows since when the API does not tell of what is watched, and why.
type outage struct {
	host    string
	metrics *Metrics
	logger  *slog.Logger

	mu      sync.Mutex
	since   time.Time
	failing map[string]error // by resource
	unheard map[string]bool  // resources that the API has not told of yet
	refused error            // why it never will of runtime classes
}

func newOutage(host string, metrics *Metrics, logger *slog.Logger) *outage {
	o := &outage{
		host: host, metrics: metrics, logger: logger, since: time.Now(),
		failing: map[string]error{}, unheard: map[string]bool{resourcePods: true, resourceNamespaces: true, resourceClasses: true},
	}
	for resource := range o.unheard {
		metrics.hears(resource, false)
	}
	return o
}

// note takes in how a request for the resource ended. An outage is logged when it begins
// and when it is over.
func (o *outage) note(ctx context.Context, resource string, err error) {
	if err != nil && (ctx.Err() == context.Canceled || outdated(err)) {
		return
	}
	err = plain(err)
	o.metrics.asked(resource, err)
	o.metrics.hears(resource, err == nil)
	o.mu.Lock()
	defer o.mu.Unlock()
	away := len(o.failing) > 0
	if resource == resourceClasses {
		err = o.noteClasses(err)
	}
	if err == nil {
		delete(o.unheard, resource)
		delete(o.failing, resource)
		if away && len(o.failing) == 0 {
			o.logger.Info("the Kubernetes API tells of all that is watched again", "server", o.host, "away", time.Since(o.since).Round(time.Second))
		}
		return
	}
	o.failing[resource] = err
	if !away {
		o.since = time.Now()
		o.logger.Warn("the Kubernetes API does not tell of all that is watched; what was known stays in force, and it is asked again and again",
			"server", o.host, "resource", resource, "error", err, "remedy", remedy(err, "list and watch "+resource))
	}
}

// noteClasses is note for runtime classes, which the agent can do without: that they may not
// be read is no outage, and is not to hide one. o.mu is held.
func (o *outage) noteClasses(err error) error {
	if !refuses(err) {
		o.refused = nil
		return err
	}
	if o.refused == nil {
		o.logger.Warn("the Kubernetes API does not tell of runtime classes; they go by their names, and not by their handlers'",
			"error", err, "remedy", remedy(err, "list and watch "+resourceClasses))
	}
	o.refused = err
	return nil
}

// refuses says that the API does not serve what was asked for, or not to us.
func refuses(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) }

func (o *outage) problems() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var lines []string
	since := o.since.UTC().Format(time.RFC3339)
	for _, resource := range slices.Sorted(maps.Keys(o.failing)) {
		err := o.failing[resource]
		lines = append(lines, fmt.Sprintf("the Kubernetes API at %s does not tell of %s (since %s): %v; what was known stays in force; remedy: %s",
			o.host, resource, since, err, remedy(err, "list and watch "+resource)))
	}
	if o.refused != nil {
		lines = append(lines, fmt.Sprintf("the Kubernetes API at %s does not tell of runtime classes: %v; they go by their names, and not by their handlers'; remedy: %s",
			o.host, o.refused, remedy(o.refused, "list and watch "+resourceClasses)))
	}
	for _, resource := range slices.Sorted(maps.Keys(o.unheard)) {
		if o.failing[resource] == nil {
			lines = append(lines, fmt.Sprintf("the Kubernetes API at %s has not told of %s yet (asked since %s)", o.host, resource, since))
		}
	}
	return lines
}

// blinds says why the pods and namespaces there are may not be those that are known; empty
// if they are.
func (o *outage) blinds() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, resource := range []string{resourcePods, resourceNamespaces} {
		if err := o.failing[resource]; err != nil {
			return fmt.Sprintf("the Kubernetes API at %s does not tell of %s (since %s): %v (%s)",
				o.host, resource, o.since.UTC().Format(time.RFC3339), err, remedy(err, "list and watch "+resource))
		}
	}
	return ""
}

// plain is an error without the request that it is about: its URL says less than it hides.
func plain(err error) error {
	var about *url.Error
	if errors.As(err, &about) {
		return about.Err
	}
	return err
}

// outdated says that the API has told us to begin anew, which is no outage.
func outdated(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || strings.Contains(err.Error(), "Too large resource version")
}

// notUnderstood says that the API server is too old for the request; a plain list follows.
func notUnderstood(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsNotAcceptable(err)
}

// remedy says what a person can do about an error of the API; verbs are what was to be
// done.
func remedy(err error, verbs string) string {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var other x509.HostnameError
	switch {
	case apierrors.IsForbidden(err):
		return "let the agent's service account " + verbs + " (its ClusterRole, and admission policies)"
	case apierrors.IsUnauthorized(err):
		return "look whether the agent's token, or its kubeconfig, is expired or another cluster's"
	case errors.As(err, &unknown), errors.As(err, &invalid), errors.As(err, &other):
		return "look at the API server's certificate, the CA that the agent was given, and the node's clock"
	case apierrors.ReasonForError(err) != "":
		return "look at the API server: it answers with an error"
	}
	return "look whether the API server runs, and whether this node reaches it"
}
