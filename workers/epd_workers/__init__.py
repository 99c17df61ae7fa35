"""What runs inside the pods: the Reference engine and the registrar that keeps the router's membership true.

The workers never import the control plane; both sides share only names on the wire (labels, ports, JSON documents).
"""

__version__ = "0.1.0"
