"""The blocks of entries that later layers look into (`candidate_blocks`)."""
