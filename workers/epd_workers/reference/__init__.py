"""A small CPU engine that speaks SGLang's protocol.

The tricky idea: every number is computed in float64 and stored in float32, so that batched and single, chunked and
whole, prefill + decode and aggregated all give the same tokens although their sums run in different orders.
"""
