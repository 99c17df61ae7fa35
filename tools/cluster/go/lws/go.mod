// The CustomResourceDefinition of LeaderWorkerSet lies in its module: nothing of it is built.
module epd.dev/e2e/cluster/lws

go 1.26.0

require sigs.k8s.io/lws v0.7.0
