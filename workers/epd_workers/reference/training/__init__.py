"""Making and measuring the shipped checkpoint: a small synthetic world, the training and the held-out evaluation.

The tricky idea: whether a picture or a fact belongs to training or to the held-out set is decided by a hash of its
content (`world.held_out`), so the two sets stay apart whatever seed, phrasing or order draws them.
"""
