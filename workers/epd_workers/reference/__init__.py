"""A small CPU engine that speaks SGLang's protocol.

The tricky idea: with the torch operations everything is computed in float64, and every cached row is read back from the
caches' own formats (FP4, FP8 or bfloat16), so that batched and single, chunked and whole, prefill + decode and
aggregated all give the same tokens although their sums run in different orders.
"""
