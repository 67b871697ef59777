{{/* The driver's name, which volumes record for ever. */}}
{{- define "nearflash.driver" -}}csi.nearflash.io{{- end }}

{{/* The label of nodes by which the driver knows them in topologies. */}}
{{- define "nearflash.topologyKey" -}}topology.nearflash.io/node{{- end }}

{{/* The name that all objects of the release begin with. */}}
{{- define "nearflash.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "nearflash.controllerName" -}}{{ include "nearflash.fullname" . }}-controller{{- end }}
{{- define "nearflash.nodeName" -}}{{ include "nearflash.fullname" . }}-node{{- end }}

{{/* Labels of every object. */}}
{{- define "nearflash.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Labels that select the pods of one component: dict "root" $ "component" NAME. */}}
{{- define "nearflash.selectorLabels" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The pods of the node plugin, as a selector. */}}
{{- define "nearflash.nodePods" -}}
{{- include "nearflash.selectorLabels" (dict "root" . "component" "node") | replace ": " "=" | splitList "\n" | sortAlpha | join "," -}}
{{- end }}

{{/* The secret with the client certificate for nearflash-target. */}}
{{- define "nearflash.targetSecret" -}}
{{- .Values.target.tls.existingSecret | default (printf "%s-target-client" (include "nearflash.fullname" .)) -}}
{{- end }}

{{/* Whether there is a storage server, the default one or another: "true" or "". */}}
{{- define "nearflash.hasServer" -}}
{{- if or .Values.target.address .Values.targets }}true{{ end }}
{{- end }}

{{/* The rule of a NetworkPolicy to a storage server, given its address. */}}
{{- define "nearflash.egressToServer" -}}
{{- $host := regexReplaceAll ":[0-9]+$" . "" | trimPrefix "[" | trimSuffix "]" -}}
- ports:
    - protocol: TCP
      port: {{ regexFind "[0-9]+$" . }}
  {{- if contains ":" $host }}
  to:
    - ipBlock:
        cidr: {{ $host }}/128
  {{- else if regexMatch "^[0-9]+([.][0-9]+){3}$" $host }}
  to:
    - ipBlock:
        cidr: {{ $host }}/32
  {{- end }}
{{- end }}

{{/* The secret with the CHAP account for nodes without a key. */}}
{{- define "nearflash.chapSecret" -}}
{{- .Values.chap.existingSecret | default (printf "%s-chap" (include "nearflash.fullname" .)) -}}
{{- end }}

{{/* Whether the controller makes that secret: "true" or "". */}}
{{- define "nearflash.chapMade" -}}
{{- if and (include "nearflash.hasServer" .) (not .Values.chap.existingSecret) (not .Values.chap.password) }}true{{ end }}
{{- end }}

{{/* The secret with the key of the controller, of which it derives CHAP accounts: a name of the program's. */}}
{{- define "nearflash.loginKeySecret" -}}nearflash-login-key{{- end }}

{{/* The name of the controller's service account to the API server. */}}
{{- define "nearflash.controllerUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "nearflash.controllerName" . }}
{{- end }}

{{/* How the pods of nodes are replaced. */}}
{{- define "nearflash.nodeUpdateStrategy" -}}
type: {{ .Values.node.updateStrategy.type }}
{{- if eq .Values.node.updateStrategy.type "RollingUpdate" }}
rollingUpdate:
  maxUnavailable: {{ .Values.node.updateStrategy.maxUnavailable }}
{{- end }}
{{- end }}

{{/* Whether the chart brings the daemon that logs in to iSCSI targets: "true" or "". */}}
{{- define "nearflash.ownIscsid" -}}
{{- if and .Values.node.iscsi (eq .Values.node.iscsid.run "own") }}true{{ end }}
{{- end }}

{{/* Whether the plugin runs the host's iscsiadm, in the host's mount namespace: "true" or "". */}}
{{- define "nearflash.hostIscsiadm" -}}
{{- if and .Values.node.iscsi (eq .Values.node.iscsid.run "nsenter") }}true{{ end }}
{{- end }}

{{/* Whether the plugin's own iscsiadm needs the node's folders of open-iscsi: "true" or "". */}}
{{- define "nearflash.iscsiDirs" -}}
{{- if and .Values.node.iscsi (ne .Values.node.iscsid.run "nsenter") }}true{{ end }}
{{- end }}

{{/* The node's folder with the initiator name. */}}
{{- define "nearflash.iscsiConfigDir" -}}
{{- if eq (include "nearflash.ownIscsid" .) "true" }}{{ .Values.node.stateDir }}/iscsi{{ else }}/etc/iscsi{{ end }}
{{- end }}

{{/* The name of the node plugin's service account to the API server. */}}
{{- define "nearflash.nodeUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "nearflash.nodeName" . }}
{{- end }}

{{/* Whether clients of /metrics are asked who they are: "true" or "". */}}
{{- define "nearflash.metricsSecure" -}}
{{- if and .Values.metrics.enabled .Values.metrics.secure }}true{{ end }}
{{- end }}

{{/* Where the certificate of /metrics is mounted. */}}
{{- define "nearflash.metricsCertDir" -}}/etc/nearflash/metrics{{- end }}

{{/* The name of what reads metrics: role, account, token. */}}
{{- define "nearflash.metricsReader" -}}{{ include "nearflash.fullname" . }}-metrics-reader{{- end }}

{{/* Flags of /metrics: dict "root" $ "port" PORT. */}}
{{- define "nearflash.metricsArgs" -}}
- --metrics-address=:{{ .port }}
{{- with .root.Values.metrics }}
{{- if not .secure }}
- --metrics-secure=false
{{- else if .certSecret }}
- --metrics-cert-dir={{ include "nearflash.metricsCertDir" $ }}
{{- end }}
{{- end }}
{{- end }}

{{/* The volume with the certificate of /metrics, and its mount; empty without one. */}}
{{- define "nearflash.metricsVolume" -}}
{{- if and (include "nearflash.metricsSecure" .) .Values.metrics.certSecret }}
- name: metrics-cert
  secret:
    secretName: {{ .Values.metrics.certSecret }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- define "nearflash.metricsMount" -}}
{{- if and (include "nearflash.metricsSecure" .) .Values.metrics.certSecret }}
- name: metrics-cert
  mountPath: {{ include "nearflash.metricsCertDir" . }}
  readOnly: true
{{- end }}
{{- end }}

{{/* Where the token for other nodes' plugins is mounted. */}}
{{- define "nearflash.streamTokenDir" -}}/var/run/secrets/nearflash/stream{{- end }}

{{/*
Rules of an account that asks the API server who a client of /metrics is
(TokenReview) and what it may do (SubjectAccessReview).
*/}}
{{- define "nearflash.metricsRules" -}}
{{ include "nearflash.tokenReviewRule" . }}
{{ include "nearflash.accessReviewRule" . }}
{{- end }}
{{- define "nearflash.tokenReviewRule" -}}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
{{- end }}
{{- define "nearflash.accessReviewRule" -}}
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}

{{/*
Where the pods of one component may run: dict "root" $ "values" VALUES, those of the
component. Nodes of an architecture without images are left out. The terms of an affinity
are alternatives: each has to say so.
*/}}
{{- define "nearflash.placement" -}}
nodeSelector:
  kubernetes.io/os: linux
  {{- with .values.nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $arch := dict "key" "kubernetes.io/arch" "operator" "In" "values" .root.Values.images.architectures }}
{{- $affinity := deepCopy (.values.affinity | default dict) }}
{{- $node := $affinity.nodeAffinity | default dict }}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict }}
{{- $terms := list }}
{{- range $required.nodeSelectorTerms | default (list dict) }}
{{- $terms = append $terms (set . "matchExpressions" (append (.matchExpressions | default list) $arch)) }}
{{- end }}
{{- $node = set $node "requiredDuringSchedulingIgnoredDuringExecution" (set $required "nodeSelectorTerms" $terms) }}
affinity:
  {{- set $affinity "nodeAffinity" $node | toYaml | nindent 2 }}
{{- end }}

{{- define "nearflash.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
A CSI sidecar: dict "root" $ "name" NAME "image" IMAGE "port" PORT "args" LIST.
The probe fails when the sidecar claims leadership that it could not renew.
*/}}
{{- define "nearflash.sidecar" -}}
- name: {{ .name }}
  image: {{ .image }}
  imagePullPolicy: {{ .root.Values.images.pullPolicy }}
  args:
    - --csi-address=/csi/csi.sock
    - --timeout={{ .root.Values.controller.sidecars.timeout }}
    - --retry-interval-max={{ .root.Values.controller.sidecars.retryIntervalMax }}
    - --kube-api-qps={{ .root.Values.controller.sidecars.kubeAPIQPS }}
    - --kube-api-burst={{ .root.Values.controller.sidecars.kubeAPIBurst }}
    - --leader-election
    - --leader-election-namespace=$(NAMESPACE)
    - --http-endpoint=:{{ .port }}
    {{- range .args }}
    - {{ . }}
    {{- end }}
    - --v={{ .root.Values.logLevel }}
  env:
    - name: NAMESPACE
      valueFrom:
        fieldRef:
          fieldPath: metadata.namespace
  ports:
    - name: {{ .name | trimPrefix "csi-" }}
      containerPort: {{ .port }}
  livenessProbe:
    httpGet:
      path: /healthz/leader-election
      port: {{ .name | trimPrefix "csi-" }}
    initialDelaySeconds: 10
    timeoutSeconds: 10
    periodSeconds: 20
  securityContext:
    {{- include "nearflash.unprivileged" . | nindent 4 }}
  resources:
    {{- toYaml .root.Values.controller.sidecars.resources | nindent 4 }}
  volumeMounts:
    - name: socket
      mountPath: /csi
{{- end }}

{{/* Rules of a NetworkPolicy to names and to the API server, which is no pod. */}}
{{- define "nearflash.egressToCluster" -}}
- ports:
    - protocol: UDP
      port: 53
    - protocol: TCP
      port: 53
- ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - protocol: TCP
      port: {{ . }}
    {{- end }}
{{- end }}

{{/* The security context of everything that does not touch devices. */}}
{{- define "nearflash.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
