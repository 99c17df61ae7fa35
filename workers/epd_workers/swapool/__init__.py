"""The pool of sliding windows: what spares a returning conversation its replay, and what nothing ever waits for."""
