{{/* Names and labels. */}}

{{- define "penstock.name" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride }}
{{- else -}}
{{ .Release.Name | trunc 49 | trimSuffix "-" }}-epp
{{- end -}}
{{- end -}}

{{/* The pool that the picker serves; empty where it selects pods itself. */}}
{{- define "penstock.pool" -}}
{{- if .Values.router.inferencePool.create -}}
{{ .Release.Name }}
{{- else -}}
{{ .Values.router.inferencePool.name }}
{{- end -}}
{{- end -}}

{{/* "true" where the picker serves several pools, as they come and go. */}}
{{- define "penstock.manyPools" -}}
{{- if or .Values.router.allPools .Values.router.poolSelector }}true{{ end -}}
{{- end -}}

{{/* JSON array of the ports that pools may have for themselves. */}}
{{- define "penstock.poolPorts" -}}
{{- $ports := list -}}
{{- with .Values.router.poolPorts -}}
{{- $ends := toString . | splitList "-" -}}
{{- $ports = untilStep (first $ends | int) (add1 (last $ends | int) | int) 1 -}}
{{- end -}}
{{- toJson $ports -}}
{{- end -}}

{{/* Cluster-wide objects of two namespaces' releases must not meet. */}}
{{- define "penstock.clusterName" -}}
{{ printf "%s-%s" .Release.Namespace (include "penstock.name" .) }}
{{- end -}}

{{- define "penstock.serviceAccount" -}}
{{ .Values.router.epp.serviceAccount.name | default (include "penstock.name" .) }}
{{- end -}}

{{- define "penstock.selectorLabels" -}}
app.kubernetes.io/name: penstock-epp
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "penstock.labels" -}}
{{ include "penstock.selectorLabels" . }}
app.kubernetes.io/component: endpoint-picker
app.kubernetes.io/part-of: penstock
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "penstock.metadata" -}}
name: {{ include "penstock.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "penstock.labels" . | nindent 2 }}
{{- end -}}

{{- define "penstock.image" -}}
{{- $image := .Values.router.epp.image -}}
{{- if $image.registry }}{{ $image.registry }}/{{ end }}{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* "true" where replicas elect a leader. */}}
{{- define "penstock.leaderElection" -}}
{{- if eq (toString (index .Values.router.epp.flags "ha-enable-leader-election")) "true" }}true{{ end -}}
{{- end -}}

{{/* "true" where more than one replica is to run. */}}
{{- define "penstock.severalReplicas" -}}
{{- $epp := .Values.router.epp -}}
{{- if or (gt (int $epp.replicas) 1) (and $epp.autoscaling.enabled (gt (int $epp.autoscaling.maxReplicas) 1)) }}true{{ end -}}
{{- end -}}
