"""The control plane: one DeepSeekV41Deployment in, serving pods out.

The one idea to hold on to: every decision is a pure function of what the API server holds (`plan`), and the only impure
code (`runtime`) repeats read, plan, apply until nothing differs. Nothing is remembered outside the cluster's objects.
"""

__version__ = "0.1.0"
