{{/* The name of the webhook's Service, Secret and MutatingWebhookConfiguration. */}}
{{- define "nearflash.schedulingName" -}}{{ include "nearflash.fullname" . }}-scheduling{{- end }}

{{/* Flags of the controller for it; empty when it is off. */}}
{{- define "nearflash.schedulingArgs" -}}
{{- if .Values.scheduling.enabled }}
- --scheduling-address=:{{ .Values.scheduling.port }}
- --scheduling-namespace=$(NAMESPACE)
- --scheduling-name={{ include "nearflash.schedulingName" . }}
- --scheduling-warm-weight={{ .Values.scheduling.weights.warm }}
- --scheduling-free-weight={{ .Values.scheduling.weights.free }}
{{- end }}
{{- end }}
