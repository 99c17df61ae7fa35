"""End-to-end work: a real Kubernetes on this machine, container images, and the tests that use both."""
