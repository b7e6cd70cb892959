{{/* Name of the application, for the label. */}}
{{- define "cpubind.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of the release's objects. A release's name has at most 53 characters, so that nothing is cut from it. */}}
{{- define "cpubind.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := include "cpubind.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cpubind.selectorLabels" -}}
app.kubernetes.io/name: {{ include "cpubind.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "cpubind.labels" -}}
{{ include "cpubind.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: node-agent
app.kubernetes.io/part-of: cpubind
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "cpubind.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "cpubind.fullname" .) -}}
{{- end -}}

{{- define "cpubind.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* Where the pod may run: the same for the agent and for `helm test`, whose image must fit the node, too. */}}
{{- define "cpubind.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where the agent listens. In the host's network that is the node's loopback: on all interfaces it would be the node's. */}}
{{- define "cpubind.listenHost" -}}
{{- if .Values.hostNetwork -}}127.0.0.1{{- end -}}
{{- end -}}

{{- define "cpubind.probe" -}}
httpGet:
  path: {{ .path }}
  port: {{ .root.Values.health.port }}
  {{- with include "cpubind.listenHost" .root }}
  host: {{ . }}
  {{- end }}
{{- end -}}

{{/*
securityContext of the agent's container: that of the profile, with the fields that values.yaml has in place of its own.
What of these is null is left out. `capabilities` and the like are taken field by field, so that an `add` keeps the `drop`.
*/}}
{{- define "cpubind.securityContext" -}}
{{- $context := dict "readOnlyRootFilesystem" true "runAsUser" 0 "runAsGroup" 0 -}}
{{- if eq (.Values.profile | default "privileged") "privileged" -}}
{{- $_ := set $context "privileged" true -}}
{{- else -}}
{{- $_ := set $context "privileged" false -}}
{{- $_ := set $context "allowPrivilegeEscalation" false -}}
{{- /* Without CAP_ before it: the API server takes no CAP_SYS_ADMIN where privileges may not be escalated. */ -}}
{{- $_ := set $context "capabilities" (dict "drop" (list "ALL") "add" (list "SYS_NICE" "SYS_PTRACE" "DAC_READ_SEARCH" "SYS_ADMIN" "NET_ADMIN")) -}}
{{- $_ := set $context "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- end -}}
{{- range $name, $value := .Values.securityContext -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $context $name -}}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $context $name)) -}}
{{- range $field, $inner := $value -}}
{{- $_ := set (get $context $name) $field $inner -}}
{{- end -}}
{{- else -}}
{{- $_ := set $context $name $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}
