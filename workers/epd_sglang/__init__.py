"""A plugin of the unmodified SGLang 0.5.23: vision-encode tier, pool of windows and replay metrics for DeepSeek-V4.1.

The engine finds `register` by its entry point (group `sglang.srt.plugins`, name `epd`) in every process that loads
plugins. Importing this module imports nothing else, because most of those processes need next to nothing of it.
"""

__version__ = "0.1.0"


def register() -> None:
    """Put every hook in place, or none and say in one log line why not.

    Source: SGLang 0.5.23, srt/plugins/__init__.py, load_plugins.
    """
    # Imported here: whoever only asks for the version pays for nothing.
    from epd_sglang import installation  # noqa: PLC0415

    installation.install()
