{{/* The name of what is there for origins of other CSI drivers alone. */}}
{{- define "nearflash.originsName" -}}{{ include "nearflash.fullname" . }}-origins{{- end }}

{{/* The account of the controller and its sidecars, as the API server names it. */}}
{{- define "nearflash.controllerAccount" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "nearflash.controllerName" . }}
{{- end }}

{{/* The namespace of inner claims; empty when there are none. */}}
{{- define "nearflash.originNamespace" -}}
{{- if .Values.origins.enabled }}{{ .Values.origins.namespace }}{{ end }}
{{- end }}

{{/*
The namespace of inner claims of the revision that is installed; empty without one. Its
values cannot be read, but its controller can.
*/}}
{{- define "nearflash.originNamespaceBefore" -}}
{{- $deployment := lookup "apps/v1" "Deployment" .Release.Namespace (include "nearflash.controllerName" .) | default dict }}
{{- range dig "spec" "template" "spec" "containers" list $deployment }}
{{- range .args }}
{{- if hasPrefix "--origin-namespace=" . }}{{ trimPrefix "--origin-namespace=" . }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
Flags of external-provisioner. Origins of other drivers are not everywhere, so that
CreateVolume has to know for which node a volume is made, and answers where it can be
used. strict-topology names that node alone. Without immediate-topology=false, a volume
of nearflash-target with volumeBindingMode Immediate would wait until a node plugin has
registered. The feature gate Topology is on by default since external-provisioner 5.0.
*/}}
{{- define "nearflash.provisionerTopologyArgs" -}}
{{- if .Values.origins.enabled }}
- --strict-topology
- --immediate-topology=false
{{- end }}
{{- end }}

{{/* The head of an admission policy: dict "root" $ "policy" NAME. */}}
{{- define "nearflash.originsPolicyHead" }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ include "nearflash.originsName" .root }}-{{ .policy }}
  labels:
    {{- include "nearflash.labels" .root | nindent 4 }}
{{- end }}

{{/* An expression: an update leaves the labels and annotations of nearflash alone. */}}
{{- define "nearflash.sameMarks" -}}
request.operation != 'UPDATE'
|| [[oldObject.metadata.?labels.orValue({}), object.metadata.?labels.orValue({})],
[oldObject.metadata.?annotations.orValue({}), object.metadata.?annotations.orValue({})]].all(p,
p.all(m, m.all(k, !k.startsWith('nearflash.io/') || p[0][?k] == p[1][?k])))
{{- end }}
