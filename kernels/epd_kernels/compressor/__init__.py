"""Global entries of pairs of tokens, across the chunks of a prompt."""
