{{/*
The agent's settings, all of them by environment: a mapping of name to value as YAML. What is null or empty in the values
is left out, so that the agent's own default holds. The API server takes `$(NAME)` in a value for a reference; `$$` is a
plain dollar.
*/}}
{{- define "cpubind.settings" -}}
{{- $v := .Values -}}
{{- $listen := include "cpubind.listenHost" . -}}
{{- $rules := list -}}
{{- range $v.threadRules -}}
{{- $rules = append $rules (printf "%s=%s" .prefix .role) -}}
{{- end -}}
{{- $settings := dict
  "CPUBIND_HOST_ROOT" "/host"
  "CPUBIND_NPU_SMI" (printf "/host%s" $v.npuSmi.path)
  "CPUBIND_NPU_SMI_TIMEOUT" $v.npuSmi.timeout
  "CPUBIND_POD_SELECTION" $v.podSelection
  "CPUBIND_NAMESPACES" (join "," $v.namespaces)
  "CPUBIND_EXCLUDE_NAMESPACES" (join "," $v.excludeNamespaces)
  "CPUBIND_HEALTH_ADDRESS" (printf "%s:%v" $listen $v.health.port)
  "CPUBIND_METRICS_ADDRESS" (ternary (printf "%s:%v" ($v.metrics.address | default $listen) $v.metrics.port) "off" $v.metrics.enabled)
  "CPUBIND_SWEEP_INTERVAL" $v.sweepInterval
  "CPUBIND_MEMORY_TIMEOUT" $v.memoryTimeout
  "CPUBIND_STATUS_INTERVAL" $v.statusInterval
  "CPUBIND_API_JITTER" $v.apiJitter
  "CPUBIND_LOG_LEVEL" $v.log.level
  "CPUBIND_LOG_FORMAT" $v.log.format
  "CPUBIND_MODE" $v.mode
  "CPUBIND_STRATEGY" $v.strategy
  "CPUBIND_DEVICE_TYPE" $v.deviceType
  "CPUBIND_RESERVED_CPUS" $v.reservedCpus
  "CPUBIND_INCLUDE_ISOLATED_CPUS" $v.includeIsolatedCpus
  "CPUBIND_REBALANCE" $v.rebalance
  "CPUBIND_IRQ_BINDING" $v.irqBinding
  "CPUBIND_MEMORY_MIGRATION" $v.memoryMigration
  "CPUBIND_UVB_BINDING" $v.uvbBinding
  "CPUBIND_HELPERS" $v.helpers
  "CPUBIND_THREAD_RULE" (join "," $rules)
  "CPUBIND_ALLOW_ANY_ARCHITECTURE" $v.allowAnyArchitecture
  "HOME" "/tmp"
-}}
{{- with $v.metrics -}}
{{- if and .enabled .perPod -}}
{{- $_ := set $settings "CPUBIND_METRICS_PER_POD" "true" -}}
{{- end -}}
{{- if and .enabled .tls.secretName -}}
{{- $_ := set $settings "CPUBIND_METRICS_TLS_CERT" "/etc/cpubind/metrics-tls/tls.crt" -}}
{{- $_ := set $settings "CPUBIND_METRICS_TLS_KEY" "/etc/cpubind/metrics-tls/tls.key" -}}
{{- if .tls.clientAuth -}}
{{- $_ := set $settings "CPUBIND_METRICS_TLS_CLIENT_CA" "/etc/cpubind/metrics-tls/ca.crt" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $v.driver.libraryPath -}}
{{- $_ := set $settings "CPUBIND_NPU_SMI_LIBRARY_PATH" $v.driver.libraryPath -}}
{{- else if $v.driver.path -}}
{{- $_ := set $settings "CPUBIND_NPU_SMI_LIBRARY_PATH" (printf "%s/lib64/driver:%s/lib64/common" $v.driver.path $v.driver.path) -}}
{{- end -}}
{{- range $name, $value := $settings -}}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) }}
{{ $name }}: {{ toString $value | replace "$" "$$" | quote }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cpubind.env" -}}
- name: CPUBIND_NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- range $name, $value := include "cpubind.settings" . | fromYaml }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
