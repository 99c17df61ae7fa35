"""Moves keys, values and image embeddings between pods.

The tricky idea: prefill and decode get a request from the router at the same moment, each under the same room
number, and either may come first. So the prefill's table of rooms holds whichever half arrived (a request that waits
for its peer, or a peer that waits for its request) and every wait on it ends in bounded time: by the other half, by a
deadline, or by the loss of a connection.
"""
