"""Continuous batching over one model thread.

The tricky idea: all bookkeeping happens under one lock at the moment of the call, never later in the model thread. An
abort frees slot and pages before it returns; a step that was already running finds its sequence gone and drops the
result.
"""
