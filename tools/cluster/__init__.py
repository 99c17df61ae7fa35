"""A real Kubernetes on one Linux machine, built from Go modules: no container engine, no image from outside.

The one tricky idea: the whole cluster lives in a *network namespace of its own* (``epd``), and a veth pair puts the
machine on the cluster's bridge as just another address (10.244.0.254). Pods, Services and the API server are reached
from the machine as from a pod, yet every iptables rule, conntrack entry and listening port of the cluster disappears
with the namespace: nothing of the machine's own network is edited, and nothing has to be undone rule by rule.
There is no default route in that namespace, so no packet of the cluster can leave the machine.
"""
