"""The only impure part: kopf's watches in, server-side applies out, and the machinery in between.

The tricky idea: kopf is used as a set of watch streams and nothing else. Its handlers put what they see into our cache
and a key into our queue; every decision is `plan`, every write goes through `reconciler`, and a write happens only when
`difference` says that the cluster no longer holds what was planned. So at rest nothing is written, and after a restart
neither.
"""
