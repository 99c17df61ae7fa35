"""Every kernel compiled for every GPU that it is meant for, compared with a table of limits.

The gate is static: it needs no GPU and says nothing about time. `python -m epd_kernels.gate` prints it.
"""
