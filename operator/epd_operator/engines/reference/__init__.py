"""The facts about the Reference engine."""
