"""The byte formats of caches: window rows, global entries, index keys."""
