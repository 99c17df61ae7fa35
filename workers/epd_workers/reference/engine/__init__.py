"""Continuous batching over one model thread.

The tricky idea: what a request may hold is counted under one lock at the moment of the call, never later in the model
thread. An abort frees slot and reservation before it returns; a step that was already running finds its request gone
and drops the result. The pages themselves change hands between two steps only, so no step ever writes into a page that
has got another owner.
"""
