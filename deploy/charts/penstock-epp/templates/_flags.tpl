{{/*
The picker's command line: one flag a name, the user's over the chart's. The pool's namespace is that of the pod, from
the environment's NAMESPACE.
*/}}
{{- define "penstock.args" -}}
{{- $router := .Values.router -}}
{{- $flags := dict
  "config-file" (printf "/config/%s" $router.epp.pluginsConfigFile)
  "grpc-port" $router.epp.extProcPort
  "grpc-health-port" $router.epp.grpcHealthPort
  "metrics-port" $router.metricsPort
  "metrics-endpoint-auth" $router.monitoring.prometheus.auth.enabled
  "tracing" $router.tracing.enabled -}}
{{- $pool := include "penstock.pool" . -}}
{{- if include "penstock.manyPools" . -}}
  {{- if $router.poolSelector -}}
    {{- $_ := set $flags "pool-selector" $router.poolSelector -}}
  {{- else -}}
    {{- $_ := set $flags "all-pools" true -}}
  {{- end -}}
  {{- if $router.allNamespaces -}}
    {{- $_ := set $flags "all-namespaces" true -}}
  {{- end -}}
  {{- with $router.poolPorts -}}
    {{- $_ := set $flags "pool-ports" . -}}
  {{- end -}}
  {{- $_ := set $flags "pool-group" $router.inferencePool.group -}}
{{- else if $pool -}}
  {{- $_ := set $flags "pool-name" $pool -}}
  {{- $_ := set $flags "pool-group" $router.inferencePool.group -}}
{{- else -}}
  {{- $labels := list -}}
  {{- range $key, $value := $router.modelServers.matchLabels -}}
    {{- $labels = append $labels (printf "%s=%s" $key $value) -}}
  {{- end -}}
  {{- $ports := list -}}
  {{- range $router.modelServers.targetPorts -}}
    {{- $ports = append $ports (toString (int .number)) -}}
  {{- end -}}
  {{- $_ := set $flags "endpoint-selector" (join "," $labels) -}}
  {{- $_ := set $flags "endpoint-target-ports" (join "," $ports) -}}
{{- end -}}
{{- if $router.epp.tls.secretName -}}
  {{- $_ := set $flags "cert-path" "/certs" -}}
  {{- $_ := set $flags "enable-cert-reload" true -}}
{{- end -}}
{{- with $router.epp.sharedState -}}
  {{- if .url -}}
    {{- $_ := set $flags "shared-state-url" .url -}}
    {{- $_ := set $flags "shared-state-staleness" .staleness -}}
    {{- if .passwordSecret -}}
      {{- $_ := set $flags "shared-state-password-file" (printf "/shared-state/%s" .passwordKey) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if $router.proxy.enabled -}}
  {{- $_ := set $flags "secure-serving" false -}}
  {{- /* When it is told to end, its Envoy is, too. */ -}}
  {{- $_ := set $flags "drain-timeout" "0s" -}}
{{- end -}}
{{- range $name, $value := $router.epp.flags -}}
  {{- $_ := set $flags $name $value -}}
{{- end -}}
{{- $args := list -}}
{{- range $name, $value := $flags -}}
  {{- /* Helm reads every number as a float, which prints large ones with an exponent. */ -}}
  {{- if and (kindIs "float64" $value) (eq (float64 (int64 $value)) $value) -}}
    {{- $value = int64 $value -}}
  {{- end -}}
  {{- $args = append $args (printf "--%s=%v" $name $value) -}}
{{- end -}}
{{- toYaml $args -}}
{{- end -}}
