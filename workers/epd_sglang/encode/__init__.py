"""The encode tier: the vision tower in servers of its own, its rows on prefill, and neither on decode.

SGLang 0.5.23 has encoder servers, but not for DeepSeek-V4.1. What the model class makes of a picture is a finished span
(start, rows, newlines, end), so an encoder sends spans, and the language side places them.
"""
