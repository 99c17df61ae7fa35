"""Where figures were taken."""

from __future__ import annotations

import os
import platform
from typing import Any


def host() -> dict[str, Any]:
    """The machine, how busy it is now, and the Python that runs."""
    return {
        "processor": platform.machine(),
        "cpus": os.cpu_count(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
    }
