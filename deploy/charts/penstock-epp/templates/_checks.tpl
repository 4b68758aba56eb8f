{{/* What the schema can't say: values that don't go together. Each message names its value. */}}
{{- define "penstock.checks" -}}
{{- $router := .Values.router -}}
{{- $pool := include "penstock.pool" . -}}
{{- $ours := dict
  "config-file" "router.epp.pluginsConfigFile" "config-text" "router.epp.pluginsCustomConfig"
  "pool-name" "router.inferencePool.name" "pool-namespace" "the release's namespace"
  "pool-group" "router.inferencePool.group" "all-pools" "router.allPools" "pool-selector" "router.poolSelector"
  "all-namespaces" "router.allNamespaces" "pool-ports" "router.poolPorts"
  "endpoint-selector" "router.modelServers.matchLabels" "endpoint-target-ports" "router.modelServers.targetPorts"
  "grpc-port" "router.epp.extProcPort" "grpc-health-port" "router.epp.grpcHealthPort"
  "metrics-port" "router.metricsPort" "shared-state-url" "router.epp.sharedState.url"
  "shared-state-password-file" "router.epp.sharedState.passwordSecret"
  "shared-state-staleness" "router.epp.sharedState.staleness" -}}
{{- range $flag, $value := $router.epp.flags -}}
  {{- if hasKey $ours $flag -}}
    {{- fail (printf "router.epp.flags.%s: the chart sets this flag; use %s" $flag (index $ours $flag)) -}}
  {{- end -}}
{{- end -}}
{{- if and $router.inferencePool.create $router.inferencePool.name -}}
  {{- fail "router.inferencePool.name: a pool that the chart creates has the release's name; set router.inferencePool.create to false to serve an existing one" -}}
{{- end -}}
{{- $many := include "penstock.manyPools" . -}}
{{- if and $many $pool -}}
  {{- fail "router.inferencePool: with router.allPools or router.poolSelector the pools are those that there are; set create to false and no name" -}}
{{- end -}}
{{- if and $router.allPools $router.poolSelector -}}
  {{- fail "router.poolSelector: not beside router.allPools, which takes every pool" -}}
{{- end -}}
{{- if and $router.allNamespaces (not $many) -}}
  {{- fail "router.allNamespaces: goes with router.allPools or router.poolSelector" -}}
{{- end -}}
{{- if $router.poolPorts -}}
  {{- if not $many -}}
    {{- fail "router.poolPorts: goes with router.allPools or router.poolSelector" -}}
  {{- end -}}
  {{- $ports := include "penstock.poolPorts" . | fromJsonArray -}}
  {{- if or (not $ports) (gt (len $ports) 64) (lt (first $ports | int) 1) (gt (last $ports | int) 65535) -}}
    {{- fail (printf "router.poolPorts: %v is no port, nor a range of up to 64 ports" $router.poolPorts) -}}
  {{- end -}}
  {{- range list $router.epp.extProcPort $router.epp.grpcHealthPort $router.metricsPort -}}
    {{- if and (ge (int .) (first $ports | int)) (le (int .) (last $ports | int)) -}}
      {{- fail (printf "router.poolPorts: holds port %d, which all pools share" (int .)) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if and $many $router.proxy.enabled -}}
  {{- fail "router.allPools: Envoy in the picker's pod leads to one pool" -}}
{{- end -}}
{{- if and (or $router.inferencePool.create (not (or $pool $many))) (not $router.modelServers.matchLabels) -}}
  {{- fail "router.modelServers.matchLabels: needed to select the model servers, such as {app: my-model}" -}}
{{- end -}}
{{- if and $router.inferencePool.create (ne $router.inferencePool.group "inference.networking.k8s.io") -}}
  {{- fail (printf "router.inferencePool.group: the chart creates pools of inference.networking.k8s.io only, not of %s" $router.inferencePool.group) -}}
{{- end -}}
{{- if and $router.inferenceObjectives (not $router.inferencePool.create) -}}
  {{- fail "router.inferenceObjectives: needs router.inferencePool.create" -}}
{{- end -}}
{{- if not (hasKey (include "penstock.pluginFiles" . | fromYaml) $router.epp.pluginsConfigFile) -}}
  {{- fail (printf "router.epp.pluginsConfigFile: there is no %s among default-plugins.yaml, payload-agnostic.yaml and router.epp.pluginsCustomConfig" $router.epp.pluginsConfigFile) -}}
{{- end -}}
{{- if and $router.epp.sharedState.passwordSecret (not $router.epp.sharedState.url) -}}
  {{- fail "router.epp.sharedState.passwordSecret: there is no url that it is for" -}}
{{- end -}}
{{- if and $router.epp.autoscaling.enabled (include "penstock.leaderElection" .) -}}
  {{- fail "router.epp.autoscaling.enabled: with router.epp.flags.ha-enable-leader-election one replica does all the work, however many there are" -}}
{{- end -}}
{{- if and $router.epp.autoscaling.enabled (gt (int $router.epp.autoscaling.minReplicas) (int $router.epp.autoscaling.maxReplicas)) -}}
  {{- fail "router.epp.autoscaling.minReplicas: above maxReplicas" -}}
{{- end -}}
{{- if and $router.proxy.enabled (ne .Chart.Name "penstock-standalone") -}}
  {{- fail "router.proxy.enabled: Envoy beside the picker comes with the chart penstock-standalone" -}}
{{- end -}}
{{- if and $router.proxy.enabled (ge (int $router.proxy.drainSeconds) (int $router.epp.terminationGracePeriodSeconds)) -}}
  {{- fail "router.proxy.drainSeconds: not below router.epp.terminationGracePeriodSeconds" -}}
{{- end -}}
{{- if and $router.proxy.enabled $router.epp.tls.secretName -}}
  {{- fail "router.epp.tls.secretName: Envoy in the picker's pod speaks to it in plain text over loopback" -}}
{{- end -}}
{{- if and $router.proxy.enabled (eq (toString (index $router.epp.flags "secure-serving")) "true") -}}
  {{- fail "router.epp.flags.secure-serving: Envoy in the picker's pod speaks to it in plain text over loopback" -}}
{{- end -}}
{{- if and .Values.httpRoute.create (not $pool) -}}
  {{- fail "httpRoute.create: needs an InferencePool to lead to (router.inferencePool)" -}}
{{- end -}}
{{- end -}}
