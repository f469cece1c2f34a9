{{/*
istio-cni's values that Fairlead does not know. The schema lets them pass, so that what is
said of them here is heard. A value of what Fairlead does anyway is accepted.
*/}}
{{- define "fairlead.refusals" -}}
cniConfFileName: the primary's file is found by itself, as the runtime finds it
istioOwnedCNIConfigFileName: the file is 02-fairlead.conflist; nothing else has to know its name
repair: a pod that the mesh has missed is captured while it runs; there is nothing to label, delete or restart
chained: the plugin always follows the primary's; alone it has no interface to work on
provider: only the runtime's own list is extended; a NetworkAttachmentDefinition of Multus is asked for by pods, and who does not ask would bypass the mesh
istioOwnedCNIConfig: it is cniMode here; owned, the default, leaves the primary's file alone, chained adds to it
ambient.enabled: this chart is for ambient mode alone; to have none, do not install it
ambient.ipv6: both families are captured wherever the kernel has them; a family that is left out bypasses the mesh
ambient.reconcileIptablesOnStartup: rules are compared and put right at the start, and ever after
ambient.enableAmbientDetectionRetry: an ADD always waits for its pod to be known, and then fails closed
global.nativeNftables: rules are always nftables, written by netlink; there is no other backend
{{- end -}}

{{/* The values of these that ask for what is done anyway. */}}
{{- define "fairlead.accepted" -}}
chained: true
provider: default
istioOwnedCNIConfig: true
ambient.enabled: true
ambient.ipv6: true
ambient.reconcileIptablesOnStartup: true
ambient.enableAmbientDetectionRetry: true
global.nativeNftables: true
{{- end -}}

{{- define "fairlead.validate" -}}
{{- $accepted := include "fairlead.accepted" . | fromYaml -}}
{{- $problems := list -}}
{{- range $name, $why := include "fairlead.refusals" . | fromYaml -}}
{{- $values := $.Values -}}
{{- $key := $name -}}
{{- if contains "." $name -}}
{{- $parts := splitn "." 2 $name -}}
{{- $values = get $.Values $parts._0 -}}
{{- $key = $parts._1 -}}
{{- end -}}
{{- if hasKey $values $key -}}
{{- $value := get $values $key -}}
{{- if not (hasKey $accepted $name) -}}
{{- $problems = append $problems (printf "%s is refused: %s" $name $why) -}}
{{- else if ne (toString $value) (toString (get $accepted $name)) -}}
{{- $problems = append $problems (printf "%s: %v is refused: %s" $name $value $why) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.cniStatus "always") (ne .Values.cniMode "owned") -}}
{{- $problems = append $problems (printf "cniStatus: always needs cniMode: owned: with %s the list, and its version, is the primary's" .Values.cniMode) -}}
{{- end -}}
{{- if and .Values.admissionPolicies.enabled (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $nodes := ternary ", and nodes" "" (or (ne (include "fairlead.writesTaint" .) "") .Values.node.condition) -}}
{{- $problems = append $problems (printf "admissionPolicies.enabled: Kubernetes %s has no ValidatingAdmissionPolicy; set it to false, and the agent's token may then write the status of pods on any node%s" .Capabilities.KubeVersion.Version $nodes) -}}
{{- end -}}
{{- $leaving := printf "%s-uninstall" (include "fairlead.name" .) -}}
{{- if and .Release.IsInstall (lookup "apps/v1" "DaemonSet" .Release.Namespace $leaving) -}}
{{- $problems = append $problems (printf "DaemonSet %s is there still, of a helm uninstall that was killed, and would take away what is put onto the nodes: kubectl -n %s delete daemonset %s" $leaving .Release.Namespace $leaving) -}}
{{- end -}}
{{- if $problems -}}
{{- fail (printf "\n  %s" (join "\n  " $problems)) -}}
{{- end -}}
{{- end -}}
