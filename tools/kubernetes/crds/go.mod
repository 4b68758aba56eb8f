// The resource definitions of the Gateway API, of its Inference Extension and of the projects whose objects the charts
// make, for the tests' API server. Nothing of these modules is compiled: tests read files of their folders. go.sum holds
// them to what was read once.
module penstock/tools/kubernetes/crds

go 1.26.0

require (
	github.com/kedacore/keda/v2 v2.21.0
	github.com/prometheus-operator/prometheus-operator v0.85.0
	istio.io/api v1.32.0
	sigs.k8s.io/gateway-api v1.6.3
	sigs.k8s.io/gateway-api-inference-extension v1.5.0
)
