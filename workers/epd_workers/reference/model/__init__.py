"""The model behind a narrow interface (`interface.py`).

The tricky idea: sums in another order must not change a token. All arithmetic is float64, whose order-dependent noise
(1e-16) is far below the gap between two logits; keys and values are rounded to float32 before *anyone* reads them, so
that a value read back from the wire equals the one used in place.
"""
