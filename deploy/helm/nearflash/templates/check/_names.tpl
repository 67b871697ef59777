{{/* The name of what `helm test` runs. */}}
{{- define "nearflash.checkName" -}}{{ include "nearflash.fullname" . }}-check{{- end }}

{{/*
Annotations of everything that is there for `helm test` alone; the argument orders
it. The pod stays when it failed, so that its log can be read.
*/}}
{{- define "nearflash.checkHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
