{{/* The ConfigMap that lists the storage servers with names, and where it and their certificates are mounted. */}}
{{- define "nearflash.targetsName" -}}{{ include "nearflash.fullname" . }}-targets{{- end }}
{{- define "nearflash.targetsDir" -}}/etc/nearflash/targets{{- end }}
{{- define "nearflash.targetsTLSDir" -}}/etc/nearflash/target-tls{{- end }}

{{/* The secret with the client certificate for one of them: dict "root" $ "target" ENTRY. */}}
{{- define "nearflash.namedTargetSecret" -}}
{{- dig "tls" "existingSecret" "" .target | default (printf "%s-target-client-%s" (include "nearflash.fullname" .root) .target.name) -}}
{{- end }}

{{/* What the controller reads of them. */}}
{{- define "nearflash.targetsFile" -}}
{{- range $i, $t := .Values.targets }}
{{- if $i }}{{ "\n" }}{{ end -}}
- name: {{ .name | quote }}
  address: {{ .address | quote }}
  {{- with .serverName }}
  serverName: {{ . | quote }}
  {{- end }}
  {{- $dir := printf "%s/%s" (include "nearflash.targetsTLSDir" $) .name }}
  ca: {{ $dir }}/ca.crt
  cert: {{ $dir }}/tls.crt
  key: {{ $dir }}/tls.key
{{- end }}
{{- end }}

{{/* Fails for what no controller would start with. */}}
{{- define "nearflash.checkTargets" -}}
{{- $names := list }}
{{- $addresses := compact (list (lower .Values.target.address)) }}
{{- range .Values.targets }}
{{- if has .name $names }}
{{- fail (printf "targets: two entries have the name %s: each storage server needs a name of its own" .name) }}
{{- end }}
{{- if has (lower .address) $addresses }}
{{- fail (printf "targets: %s has the address %s, which another storage server has too: a server has one name" .name .address) }}
{{- end }}
{{- $names = append $names .name }}
{{- $addresses = append $addresses (lower .address) }}
{{- $tls := .tls | default dict }}
{{- if not (or $tls.existingSecret (and $tls.ca $tls.cert $tls.key)) }}
{{- fail (printf "targets: give %s tls.existingSecret, or all of tls.ca, tls.cert and tls.key" .name) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Fails for a class whose volumes no storage server would make: dict "root" $ "class" CLASS. */}}
{{- define "nearflash.checkClassTarget" -}}
{{- $class := .class }}
{{- $names := list }}
{{- range .root.Values.targets }}
{{- $names = append $names .name }}
{{- end }}
{{- $target := $class.parameters.target }}
{{- if eq ($class.parameters.backend | default "iscsi") "csi" }}
{{- if $target }}
{{- fail (printf "class %s has target %s and backend csi: only volumes of backend iscsi are on a storage server" $class.name $target) }}
{{- end }}
{{- else if and $target (not (has $target $names)) }}
{{- fail (printf "class %s has target %s, which is no entry of targets; accepted: %s" $class.name $target (join ", " $names | default "none, as targets is empty")) }}
{{- else if not (or $target .root.Values.target.address) }}
{{- fail (printf "class %s has no target, and target.address is empty: set parameters.target to one of %s" $class.name (join ", " $names)) }}
{{- end }}
{{- end }}
