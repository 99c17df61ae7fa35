"""The best entries of each row (`top_entries`)."""
