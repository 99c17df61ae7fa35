"""Asks the real engine about command lines, and compares its answers with the rules."""
