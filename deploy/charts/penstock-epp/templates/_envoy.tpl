{{/*
Envoy's configuration: deploy/envoy/ of the source tree, with the addresses of this release in place of the example's,
and clients' connections that end in time: told to close after half of drainSeconds, none is left by the end of them but
those whose answers take that long.
*/}}
{{- define "penstock.envoyConfig" -}}
{{- $router := .Values.router -}}
{{- $file := ternary "fail-open.yaml" "fail-close.yaml" $router.proxy.failOpen -}}
{{- $config := .Files.Get (printf "files/envoy/%s" $file) | fromYaml -}}
{{- $listener := index $config.static_resources.listeners 0 -}}
{{- $_ := set $listener.address.socket_address "port_value" (int $router.proxy.port) -}}
{{- $manager := (index (index $listener.filter_chains 0).filters 0).typed_config -}}
{{- $duration := printf "%gs" (divf $router.proxy.drainSeconds 2) -}}
{{- $_ := set $manager "common_http_protocol_options" (dict "max_connection_duration" $duration) -}}
{{- range $cluster := $config.static_resources.clusters -}}
  {{- if eq $cluster.name "picker" -}}
    {{- $endpoint := (index (index $cluster.load_assignment.endpoints 0).lb_endpoints 0).endpoint -}}
    {{- $_ := set $endpoint.address.socket_address "port_value" (int $router.epp.extProcPort) -}}
    {{- $_ := set $endpoint.health_check_config "port_value" (int $router.epp.grpcHealthPort) -}}
  {{- else if eq $cluster.name "model_servers" -}}
    {{- $_ := set $cluster "type" "STRICT_DNS" -}}
    {{- $endpoints := list -}}
    {{- range $port := $router.modelServers.targetPorts -}}
      {{- $host := printf "%s-servers.%s.svc.%s" (include "penstock.name" $) $.Release.Namespace $router.clusterDomain -}}
      {{- $address := dict "socket_address" (dict "address" $host "port_value" (int $port.number)) -}}
      {{- $endpoints = append $endpoints (dict "endpoint" (dict "address" $address)) -}}
    {{- end -}}
    {{- $_ := set (index $cluster.load_assignment.endpoints 0) "lb_endpoints" $endpoints -}}
  {{- end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/*
Of both containers: told to end, Envoy drops what is open at once, and a picker that says it goes is asked no more. So
neither is told before the pod's clients have gone elsewhere.
*/}}
{{- define "penstock.preStop" -}}
lifecycle:
  preStop:
    sleep:
      seconds: {{ .Values.router.proxy.drainSeconds }}
{{- end -}}

{{- define "penstock.envoyContainer" -}}
{{- $proxy := .Values.router.proxy -}}
- name: envoy
  image: {{ $proxy.image }}
  imagePullPolicy: {{ $proxy.imagePullPolicy }}
  args:
    {{- /* No hot restart: that needs shared memory, and a pod is replaced whole. */}}
    - --config-path
    - /etc/envoy/envoy.yaml
    - --disable-hot-restart
    - --log-level
    - {{ $proxy.logLevel }}
    {{- range $proxy.args }}
    - {{ . | quote }}
    {{- end }}
  {{- with $proxy.env }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    - name: http
      containerPort: {{ $proxy.port }}
  # Envoy opens its listener when it is ready.
  readinessProbe:
    tcpSocket:
      port: http
    periodSeconds: 2
  livenessProbe:
    tcpSocket:
      port: http
    initialDelaySeconds: 5
    periodSeconds: 10
  {{- include "penstock.preStop" . | nindent 2 }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
  resources:
    {{- toYaml $proxy.resources | nindent 4 }}
  volumeMounts:
    - name: envoy
      mountPath: /etc/envoy
      readOnly: true
{{- end -}}
