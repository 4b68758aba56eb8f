// The resource definitions of the Gateway API and of its Inference Extension, for the tests' API server. Nothing of
// these modules is compiled: tests read config/crd in their folders. go.sum holds them to what was read once.
module penstock/tools/kubernetes/crds

go 1.26.0

require (
	sigs.k8s.io/gateway-api v1.6.3
	sigs.k8s.io/gateway-api-inference-extension v1.5.0
)
