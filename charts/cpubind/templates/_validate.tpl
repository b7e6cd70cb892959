{{/*
Combinations that values.schema.json cannot refuse, each with one sentence. The schema has said already that every value
is of its form.
*/}}
{{- define "cpubind.validate" -}}
{{- include "cpubind.validate.spec" . -}}
{{- include "cpubind.validate.pods" . -}}
{{- include "cpubind.validate.metrics" . -}}
{{- include "cpubind.validate.rights" . -}}
{{- include "cpubind.validate.paths" . -}}
{{- include "cpubind.validate.extras" . -}}
{{- end -}}

{{- define "cpubind.validate.spec" -}}
{{- range compact (splitList "," (toString (.Values.reservedCpus | default ""))) -}}
{{- $ends := splitList "-" . -}}
{{- /* atoi: a number that begins with 0 is octal to int. */ -}}
{{- if lt (atoi (last $ends)) (atoi (first $ends)) -}}
{{- fail (printf "reservedCpus: the range %s runs backwards" .) -}}
{{- end -}}
{{- if gt (atoi (last $ends)) 4095 -}}
{{- fail (printf "reservedCpus: CPU %s is beyond 4095" (last $ends)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cpubind.validate.pods" -}}
{{- range .Values.namespaces -}}
{{- if has . $.Values.excludeNamespaces -}}
{{- fail (printf "%s is in both namespaces and excludeNamespaces: no pod of it could be bound" .) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.metrics.enabled (eq (int .Values.health.port) (int .Values.metrics.port)) -}}
{{- fail (printf "health.port and metrics.port are both %v: each needs a port of its own" .Values.health.port) -}}
{{- end -}}
{{- if and .Values.metrics.tls.clientAuth (not .Values.metrics.tls.secretName) -}}
{{- fail "metrics.tls.clientAuth needs metrics.tls.secretName: without a certificate of its own the agent can ask nobody for one" -}}
{{- end -}}
{{- with .Values.updateStrategy -}}
{{- if not (has (toString (dig "rollingUpdate" "maxSurge" 0 .)) (list "0" "0%")) -}}
{{- fail "updateStrategy.rollingUpdate.maxSurge must be 0: of two agents on a node the second waits for the lock of the first, so that neither would go on" -}}
{{- end -}}
{{- if and (eq .type "RollingUpdate") (has (toString .rollingUpdate.maxUnavailable) (list "0" "0%")) -}}
{{- fail "updateStrategy.rollingUpdate.maxUnavailable must be above 0: an agent is replaced by stopping the old one first" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cpubind.validate.metrics" -}}
{{- with .Values.metrics -}}
{{- if .podMonitor.enabled -}}
{{- if not .enabled -}}
{{- fail "metrics.podMonitor.enabled needs metrics.enabled: there would be nothing to scrape" -}}
{{- end -}}
{{- if and $.Values.hostNetwork (not .address) -}}
{{- fail "metrics.podMonitor.enabled needs metrics.address: in the host's network metrics are on 127.0.0.1 alone unless it says otherwise" -}}
{{- end -}}
{{- if and .tls.secretName (not .podMonitor.tlsConfig) -}}
{{- fail "metrics.podMonitor.tlsConfig is empty: with metrics.tls.secretName it has to say how Prometheus trusts the agents" -}}
{{- end -}}
{{- /* Without an interval of its own it is Prometheus's, which is not known here. */ -}}
{{- with .podMonitor -}}
{{- if and .interval .scrapeTimeout -}}
{{- if gt (include "cpubind.milliseconds" .scrapeTimeout | int64) (include "cpubind.milliseconds" .interval | int64) -}}
{{- fail (printf "metrics.podMonitor.scrapeTimeout %s is longer than the interval %s: the Prometheus operator would not take the PodMonitor" .scrapeTimeout .interval) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Of a duration as Prometheus writes it, such as 1m30s. */ -}}
{{- define "cpubind.milliseconds" -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+(h|ms|m|s)" . -1 -}}
{{- $number := regexFind "^[0-9]+" . -}}
{{- $unit := get (dict "h" 3600000 "m" 60000 "s" 1000 "ms" 1) (trimPrefix $number .) -}}
{{- $sum = add $sum (mul $number $unit) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{- define "cpubind.validate.rights" -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false: name the account to use in serviceAccount.name" -}}
{{- end -}}
{{- with include "cpubind.securityContext" . | fromYaml -}}
{{- if and (eq ($.Values.profile | default "privileged") "restricted") (dig "privileged" false .) -}}
{{- fail "profile restricted and securityContext.privileged true exclude each other: set securityContext.privileged to null" -}}
{{- end -}}
{{- if ne (int (dig "runAsUser" 0 .)) 0 -}}
{{- fail (printf "securityContext.runAsUser is %v: threads of other users and /proc/irq can be written by user 0 alone" .runAsUser) -}}
{{- end -}}
{{- if dig "runAsNonRoot" false . -}}
{{- fail "securityContext.runAsNonRoot is true: threads of other users and /proc/irq can be written by user 0 alone" -}}
{{- end -}}
{{- if dig "privileged" false . -}}
{{- if not (dig "allowPrivilegeEscalation" true .) -}}
{{- fail "securityContext: privileged true and allowPrivilegeEscalation false exclude each other" -}}
{{- end -}}
{{- else if not (or (has "SYS_NICE" (dig "capabilities" "add" (list) .)) (has "ALL" (dig "capabilities" "add" (list) .))) -}}
{{- fail "securityContext.privileged is false and capabilities.add lacks SYS_NICE: the agent could move no thread of another user" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cpubind.validate.paths" -}}
{{- $image := list "/bin" "/boot" "/dev" "/etc" "/home" "/host" "/lib" "/lib64" "/opt" "/proc" "/root" "/run" "/sbin" "/sys" "/tmp" "/usr" "/usr/bin" "/usr/lib" "/usr/lib64" "/usr/local" "/usr/local/bin" "/usr/local/lib" "/usr/local/sbin" "/usr/sbin" "/usr/share" "/var" -}}
{{- range prepend .Values.driver.extraPaths .Values.driver.path -}}
{{- if has . $image -}}
{{- fail (printf "driver: the node's %s would hide the image's own: name the driver's folder in it" .) -}}
{{- end -}}
{{- end -}}
{{- range concat .Values.driver.extraPaths (list .Values.driver.path .Values.npuSmi.path .Values.kubelet.rootDir) -}}
{{- if and . (ne . (clean .)) -}}
{{- fail (printf "path %s: write it as %s" . (clean .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cpubind.validate.extras" -}}
{{- $settings := include "cpubind.settings" . | fromYaml -}}
{{- range .Values.extraEnv -}}
{{- if or (hasKey $settings .name) (eq .name "CPUBIND_NODE_NAME") -}}
{{- fail (printf "extraEnv: %s is set by the chart already" .name) -}}
{{- end -}}
{{- end -}}
{{- $selector := include "cpubind.selectorLabels" . | fromYaml -}}
{{- range $name, $_ := .Values.podLabels -}}
{{- if hasKey $selector $name -}}
{{- fail (printf "podLabels: by %s the DaemonSet finds its pods, so that it is not yours to set" $name) -}}
{{- end -}}
{{- end -}}
{{- $taken := dict -}}
{{- range concat (include "cpubind.hostFolders" . | fromYamlArray) (list (dict "name" "tmp" "path" "/tmp") (dict "name" "metrics-tls" "path" "/etc/cpubind/metrics-tls")) -}}
{{- if hasKey $taken .path -}}
{{- fail (printf "%s is mounted twice" .path) -}}
{{- end -}}
{{- $_ := set $taken .path true -}}
{{- $_ := set $taken .name true -}}
{{- end -}}
{{- range .Values.extraVolumes -}}
{{- if hasKey $taken .name -}}
{{- fail (printf "extraVolumes: the chart has a volume called %s already" .name) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraVolumeMounts -}}
{{- if hasKey $taken .mountPath -}}
{{- fail (printf "extraVolumeMounts: the chart mounts something at %s already" .mountPath) -}}
{{- end -}}
{{- end -}}
{{- end -}}
