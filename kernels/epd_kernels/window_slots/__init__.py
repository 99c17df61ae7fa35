"""From positions to the slots of paged caches: window rows and global entries."""
