"""Models that an encoder server looks up by their class names (``SGLANG_EXTERNAL_MODEL_PACKAGE``).

The engine imports this package in every process of an encoder, in those of them, too, where it loads no plugins.
"""

import epd_sglang
import epd_sglang.cpu

epd_sglang.register()
epd_sglang.cpu.register()
