"""The model behind a narrow interface (`interface.py`).

The tricky idea: sums in another order must not change a token. With the torch operations all arithmetic is
float64, whose order-dependent noise (1e-16) is far below the gap between two logits (with Triton's it is float32); keys
and values are encoded in the caches' formats before *anyone* reads them, so that a value read back from the wire equals
the one used in place. Logits and image embeddings leave the model as float32.
"""
