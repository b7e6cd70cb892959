{{/*
What of the node the agent sees: a list of {name, path, host, type, writable, propagation} as YAML. `path` is where it is
in the container, `host` where on the node (default: the same without /host). Folders, never files: files are replaced,
and a mount goes on showing the old one.
*/}}
{{- define "cpubind.hostFolders" -}}
# /proc/irq is written; the container's own /proc shows it read-only.
- {name: proc, path: /host/proc, writable: true}
- {name: sys, path: /host/sys}
# A mount of its own: before Kubernetes 1.31 read-only does not reach what is mounted below /sys (nor, with cgroup v1, the
# controllers below this).
- {name: cgroup, path: /host/sys/fs/cgroup}
- {name: dev, path: /host/dev}
- {name: state, path: /host/var/lib/cpubind, type: DirectoryOrCreate, writable: true}
- {name: lock, path: /host/run/cpubind, type: DirectoryOrCreate, writable: true}
- {name: irqbalance, path: /host/run/irqbalance, type: DirectoryOrCreate}
# Volumes that kubelet unmounts go from the agent's view, too: otherwise the agent would hold those of pods that ended, and
# block devices could not be detached. kubelet itself makes the mount a shared one, on every host.
- name: kubelet
  path: /host/var/lib/kubelet
  host: {{ .Values.kubelet.rootDir }}
  type: Directory
  propagation: HostToContainer
- name: pod-resources
  path: /host/var/lib/kubelet/pod-resources
  host: {{ .Values.kubelet.rootDir }}/pod-resources
  type: DirectoryOrCreate
- name: npu-smi
  path: /host{{ dir .Values.npuSmi.path }}
  type: DirectoryOrCreate
{{- with .Values.driver.path }}
- name: driver
  path: {{ . }}
  type: DirectoryOrCreate
{{- end }}
{{- range $k, $path := .Values.driver.extraPaths }}
- name: driver-{{ add1 $k }}
  path: {{ $path }}
  type: DirectoryOrCreate
{{- end }}
{{- end -}}

{{- define "cpubind.volumeMounts" -}}
{{- range include "cpubind.hostFolders" . | fromYamlArray }}
- name: {{ .name }}
  mountPath: {{ .path }}
  {{- if not .writable }}
  readOnly: true
  {{- /* Of what is mounted below it, too. On by default since 1.31, and nothing for a mount that follows the host's. */}}
  {{- if and (not .propagation) (semverCompare ">=1.31.0-0" $.Capabilities.KubeVersion.Version) }}
  recursiveReadOnly: IfPossible
  {{- end }}
  {{- end }}
  {{- with .propagation }}
  mountPropagation: {{ . }}
  {{- end }}
{{- end }}
- name: tmp
  mountPath: /tmp
{{- if and .Values.metrics.enabled .Values.metrics.tls.secretName }}
# The folder, not its files: kubelet replaces it when the Secret changes, and a mounted file would stay the old one.
- name: metrics-tls
  mountPath: /etc/cpubind/metrics-tls
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "cpubind.volumes" -}}
{{- range include "cpubind.hostFolders" . | fromYamlArray }}
- name: {{ .name }}
  hostPath:
    path: {{ .host | default (trimPrefix "/host" .path) }}
    {{- with .type }}
    type: {{ . }}
    {{- end }}
{{- end }}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- if and .Values.metrics.enabled .Values.metrics.tls.secretName }}
- name: metrics-tls
  secret:
    secretName: {{ .Values.metrics.tls.secretName }}
    defaultMode: 0400
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
