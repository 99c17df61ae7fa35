"""The pool's servers: each a program of others, run under a supervisor that proves that it serves."""
