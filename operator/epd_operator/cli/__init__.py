"""The `epd` command.

The tricky idea: what a person types must answer at once, so every command imports what it needs and nothing else; kopf
and the operator's machinery are loaded by `epd run` alone.
"""
