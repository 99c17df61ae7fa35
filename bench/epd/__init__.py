"""What splitting a server into encode, prefill and decode costs, measured through the real router."""
