"""The window pool: how fast it is, what it saves a returning turn, and how often it hits."""
