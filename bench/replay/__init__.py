"""What decoder bounded replay saves in a prefill, measured on a 40-layer model in the released structure."""
