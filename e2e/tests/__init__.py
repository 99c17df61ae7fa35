"""Tests against a real cluster."""
