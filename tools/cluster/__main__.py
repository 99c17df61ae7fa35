"""``python -m tools.cluster``."""

from __future__ import annotations

import sys

from tools.cluster.cli import main

sys.exit(main())
