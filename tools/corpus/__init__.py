"""Specs and command lines for the tests: written by hand, from the examples of rules, and drawn at random."""
