"""Scores of index keys: which global entries a row may want to attend to (`index_scores`)."""
