"""Keep some rows of several tensors: hidden states, residual streams and what goes with them."""
