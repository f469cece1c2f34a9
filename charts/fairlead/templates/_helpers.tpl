{{- define "fairlead.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* Cluster-wide objects of two releases must not meet. */}}
{{- define "fairlead.clusterName" -}}
{{- printf "%s-%s" (include "fairlead.name" .) .Release.Namespace -}}
{{- end -}}

{{/* What a DaemonSet's selector is made of cannot be changed by an upgrade. */}}
{{- define "fairlead.selector" -}}
app.kubernetes.io/name: fairlead
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "fairlead.labels" -}}
{{ include "fairlead.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "fairlead.image" -}}
{{- $repository := required "image.repository: it has no default, since no image is published yet; build one (make image), push it to where your nodes pull from, and name it here" .Values.image.repository -}}
{{- with .Values.image.digest -}}
{{ $repository }}@{{ . }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* What the platform says, and before that what the value of that name says, as YAML. */}}
{{- define "fairlead.platform" -}}
{{- $all := .Files.Get "files/platforms.yaml" | fromYaml -}}
{{- $own := get $all (.Values.global.platform | default "default") -}}
{{- $platform := merge (dict) $own $all.default -}}
{{- if hasKey $own "runtimeConfigs" -}}
{{- $_ := set $platform "runtimeConfigs" $own.runtimeConfigs -}}{{/* even if there are none */}}
{{- end -}}
{{- range $name := list "cniBinDir" "cniConfDir" "cniNetnsDir" "runtimeConfigs" "seLinuxOptions" -}}
{{- with get $.Values $name -}}
{{- $_ := set $platform $name . -}}
{{- end -}}
{{- end -}}
{{- with .Values.node.taint -}}
{{- $_ := set $platform "taint" . -}}
{{- end -}}
{{- toYaml $platform -}}
{{- end -}}

{{/* Whether the agent writes its node's taints: not empty. */}}
{{- define "fairlead.writesTaint" -}}
{{- $platform := include "fairlead.platform" . | fromYaml -}}
{{- if ne $platform.taint "none" -}}true{{- end -}}
{{- end -}}

{{/* The agent's configuration file. It sees the runtime's by the node's first process. */}}
{{- define "fairlead.config" -}}
{{- $platform := include "fairlead.platform" . | fromYaml -}}
{{- $runtimeConfigs := list -}}
{{- range $platform.runtimeConfigs -}}
{{- $runtimeConfigs = append $runtimeConfigs (printf "/proc/1/root%s" .) -}}
{{- end -}}
{{- $config := dict
  "apiVersion" "agent.fairlead.io/v1alpha1"
  "kind" "AgentConfig"
  "runDir" "/run/fairlead"
  "proxySocket" "/var/run/ztunnel/ztunnel.sock"
  "httpAddress" (printf ":%v" .Values.httpPort)
  "cniCache" .Values.cniCache
  "logLevel" .Values.logging.level
  "excludeNamespaces" .Values.excludeNamespaces
  "dnsCapture" .Values.ambient.dnsCapture
  "node" (dict "taint" $platform.taint "condition" .Values.node.condition)
  "install" (dict
    "cniBinDir" $platform.cniBinDir
    "cniConfDir" $platform.cniConfDir
    "mode" .Values.cniMode
    "status" .Values.cniStatus
    "orphanAfter" .Values.cniOrphanAfter
    "runtimeConfigs" $runtimeConfigs
    "allowWithoutAgent" (append .Values.allowWithoutAgent .Release.Namespace | uniq)
  )
-}}
{{- with .Values.ambient.enablementSelectors -}}
{{- $_ := set $config "enablementSelectors" . -}}
{{- end -}}
{{- with .Values.config.probeMark -}}
{{- $_ := set $config "probeMark" (int64 .) -}}
{{- end -}}
{{- toYaml (merge $config .Values.config) -}}
{{- end -}}

{{/* The nodes that helm uninstall has pods on. */}}
{{- define "fairlead.leavingNodes" -}}
nodeSelector: {{- toYaml .Values.uninstall.nodeSelector | nindent 2 }}
{{- with .Values.uninstall.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
