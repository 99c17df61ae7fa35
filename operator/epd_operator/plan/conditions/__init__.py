"""What the status says: one module a condition, and what they share."""
