"""What SGLang accepts when it serves DeepSeek-V4.1, per version: flags, resolved values, rules.

The tricky idea: the engine judges resolved values, not what was written, so every fact here speaks of flags by their
canonical name and of values in their one normal spelling, whichever alias or form the user chose.
"""
