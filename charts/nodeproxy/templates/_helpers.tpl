{{- define "nodeproxy.selector" -}}
app.kubernetes.io/name: nodeproxy
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nodeproxy.labels" -}}
{{ include "nodeproxy.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}
