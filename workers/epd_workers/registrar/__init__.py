"""The registrar: the sidecar that keeps the router's and the prefills' membership equal to the pods.

The tricky idea: it remembers nothing that matters. Each pass compares three lists that live elsewhere (the pods in the
API server, the workers in the router, the encoder directory in every prefill) and sends only what differs, so a restart
of any of the four parties needs no protocol: the next pass sees the difference and removes it.
"""
