// The last release of the Inference Extension with the definition of its older InferencePool (v1alpha2). Nothing of it
// is compiled: tests read config/crd in its folder.
module penstock/tools/kubernetes/crds-legacy

go 1.26.0

require sigs.k8s.io/gateway-api-inference-extension v1.4.0
