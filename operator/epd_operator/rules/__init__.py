"""The language of rules, and the judge that applies them; knows no engine."""
