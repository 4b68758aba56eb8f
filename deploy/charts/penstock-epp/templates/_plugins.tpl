{{/* The EndpointPickerConfigs, by file name. */}}

{{- define "penstock.defaultPlugins" -}}
{{- $router := .Values.router -}}
{{- $servers := $router.modelServers -}}
{{- $parsers := $router.epp.parsers -}}
{{- if and (eq $servers.type "vllm") (eq $servers.protocol "grpc") -}}
  {{- $parsers = list "vllmgrpc-parser" -}}
{{- else if and (not $parsers) (eq $servers.type "triton") -}}
  {{- $parsers = list "passthrough-parser" -}}
{{- end -}}
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: metrics-data-source
  parameters:
    {{- toYaml $router.epp.metricsDataSource | nindent 4 }}
- type: core-metrics-extractor
{{- if ne $servers.type "vllm" }}
  parameters:
    defaultEngine: {{ $servers.type }}
{{- end }}
{{- range $parsers }}
- type: {{ . }}
{{- end }}
{{- if $router.latencyPredictor.enabled }}
- type: predicted-latency-producer
# Endpoints that hold almost all of the prompt, else all; of these the ones that keep the request's objectives; of
# these the ones that hold most of the prompt.
- type: prefix-cache-affinity-filter
  name: strict-affinity-filter
  parameters: { affinityThreshold: 0.99, ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000 }
- type: prefix-cache-affinity-filter
  name: loose-affinity-filter
  parameters: { affinityThreshold: 0.8, ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000 }
- type: slo-headroom-tier-filter
- type: latency-slo-admitter
- type: latency-scorer
- type: weighted-random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: strict-affinity-filter
  - pluginRef: slo-headroom-tier-filter
  - pluginRef: loose-affinity-filter
  - pluginRef: latency-scorer
  - pluginRef: weighted-random-picker
{{- else }}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 2
  - pluginRef: kv-cache-utilization-scorer
    weight: 2
  - pluginRef: prefix-cache-scorer
    weight: 3
{{- end }}
{{- if $parsers }}
requestHandler:
  parsers:
  {{- range $parsers }}
  - pluginRef: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* For bodies that no parser reads. */}}
{{- define "penstock.payloadAgnosticPlugins" -}}
{{- $affinity := eq (toString (index .Values.router.epp.flags "allow-experimental-plugins")) "true" -}}
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: passthrough-parser
- type: active-request-scorer
{{- if $affinity }}
- type: session-affinity-scorer
{{- end }}
requestHandler:
  parsers:
  - pluginRef: passthrough-parser
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: active-request-scorer
  {{- if $affinity }}
  - pluginRef: session-affinity-scorer
  {{- end }}
{{- end -}}

{{- define "penstock.pluginFiles" -}}
{{- $files := dict
  "default-plugins.yaml" (include "penstock.defaultPlugins" .)
  "payload-agnostic.yaml" (include "penstock.payloadAgnosticPlugins" .) -}}
{{- range $name, $text := .Values.router.epp.pluginsCustomConfig -}}
  {{- $_ := set $files $name $text -}}
{{- end -}}
{{- toYaml $files -}}
{{- end -}}
