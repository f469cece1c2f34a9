package kube

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Installed is when the agent's DaemonSet was created, and so since when pods of this
// cluster have been promised capture; zero if that is not known. It is known once Synced is
// true, or never.
func (s *Source) Installed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.installed
}

// installedTimeout is how long pods wait for the answer to a question that they can do
// without.
const installedTimeout = 5 * time.Second

func (s *Source) askInstalled(ctx context.Context) time.Time {
	if s.config.Agent.Name == "" {
		return time.Time{}
	}
	asking, cancel := context.WithTimeout(ctx, installedTimeout)
	defer cancel()
	when, err := s.daemonSetCreated(asking)
	if err != nil && ctx.Err() == nil {
		s.config.Logger.Warn("when the agent was installed in this cluster is not known; connections of pods that started before the agent did are kept",
			"error", err, "remedy", "let the agent's service account get its own DaemonSet, or set installed in the configuration")
	}
	return when
}

func (s *Source) daemonSetCreated(ctx context.Context) (time.Time, error) {
	agent, metadata := s.config.Agent, s.config.Client.metadata
	pod, err := metadata.Resource(podsResource).Namespace(agent.Namespace).Get(ctx, agent.Name, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, fmt.Errorf("cannot get the agent's own pod %s from the API: %w", agent, plain(err))
	}
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "DaemonSet" {
		return time.Time{}, fmt.Errorf("the agent's own pod %s belongs to no DaemonSet", agent)
	}
	set, err := metadata.Resource(daemonSetsResource).Namespace(agent.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, fmt.Errorf("cannot get the agent's DaemonSet %s/%s from the API: %w", agent.Namespace, owner.Name, plain(err))
	}
	return set.CreationTimestamp.Time, nil
}
