"""The plugin epd, which gives the unmodified engine what DeepSeek-V4.1 lacks in it, and what it needs of a deployment.

It is made for one release and refuses to run in another, because it replaces functions that no release promises to
keep. A list of plugins is all that a rule needs to know of it: a bare command line has that list beside it.
"""

from __future__ import annotations

from typing import Final

from epd_operator.engines.sglang.base import ON_A_SPEC
from epd_operator.engines.sglang.flags import LATEST, env
from epd_operator.engines.sglang.release import since
from epd_operator.rules.expression import TRUE, contains, every, some, spec_of
from epd_operator.rules.rule import ROLES, Rule

NAME: Final = "epd"
RELEASE: Final = LATEST
"""The one release that it is made for."""
SOURCE: Final = "docs/sglang-plugin.md"
ALLOWED: Final = "SGLANG_PLUGINS"
"""Names the entry points that the engine loads; without it, all that are installed. Source: SGLang 0.5.23,
plugins/__init__.py, load_plugins_by_group."""
POOL_FILE: Final = "EPD_SWA_POOL"
"""Names the file with the settings of the pool of windows; without it, the plugin uses none."""
SEARCH_PATH: Final = "PYTHONPATH"
"""Where the engine finds the plugin's files when an image of their own holds them."""

PLUGINS: Final = spec_of("engine.plugins", "list")
LOADED: Final = contains(PLUGINS, NAME)
_VERSION: Final = spec_of("engine.version", "str")
_IMAGE: Final = spec_of("engine.pluginImage", "str")

RULES: Final = (
    Rule(
        id="plugin-version",
        when=LOADED & since(RELEASE, _VERSION.given & ~(_VERSION == RELEASE), TRUE),
        sides=(PLUGINS, _VERSION),
        says=f"the plugin {NAME} replaces functions of SGLang {RELEASE}, and leaves every other version as it is",
        fix=f'set spec.engine.version to "{RELEASE}", or remove the plugin',
        source=SOURCE,
        roles=(),
    ),
    Rule(
        id="plugin-variable",
        when=every(
            ON_A_SPEC, LOADED, some(env(ALLOWED).given, env(POOL_FILE).given, _IMAGE.given & env(SEARCH_PATH).given)
        ),
        sides=(env(ALLOWED), env(POOL_FILE), env(SEARCH_PATH), PLUGINS),
        says="the operator sets these variables where it loads a plugin: which entry points are loaded, where the "
        "pool's settings are, and, with pluginImage, where the plugin's files are",
        fix="remove them; a plugin of your own cannot run beside this one",
        source=SOURCE,
        roles=ROLES,
    ),
)
RESOLVED: Final = ()
