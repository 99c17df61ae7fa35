"""`python -m tools.images build|push [operator|router|worker]...`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tools import progress
from tools.images.build import Builder
from tools.images.recipe import DEFAULT_REPOSITORY, NAMES, ImageError, Options, recipe
from tools.images.registry import registry
from tools.images.store import cache_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
EPILOG = f"""\
environment:
  IMAGE_REPO         registry to push to, host[:port][/path]; the local cluster's by default ({DEFAULT_REPOSITORY})
  EPD_BASE_IMAGE     image to build from (python:3.12-slim, say); by default a minimal Debian is made by debootstrap
  EPD_TORCH_INDEX    index that serves CPU wheels of torch; by default the CUDA half of the public wheel is left out
  EPD_DEBIAN_MIRROR  where debootstrap gets its packages
  PIP_*, pip.conf    where pip gets its packages, as outside; none of it ends in an image
"""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Understand the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.images",
        description="Build the project's container images and push those that changed.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("build", "push"))
    parser.add_argument("images", nargs="*", metavar="image", help=f"{', '.join(NAMES)}; all of them by default")
    parser.add_argument("--json", action="store_true", help="print a JSON object: image name to pinned reference")
    return parser.parse_intermixed_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run a command; its exit status is 1 when an image could not be made, 2 for a wrong command line."""
    chosen = arguments(argv)
    options = Options(os.environ.get("EPD_BASE_IMAGE", ""), os.environ.get("EPD_TORCH_INDEX", ""))
    try:
        images = [recipe(ROOT, name, options) for name in chosen.images or NAMES]
        builder = Builder(cache_folder(), ROOT, options)
        if chosen.action == "build":
            builder.build_all(images)
            references = {image.name: image.local for image in images}
        else:
            target = registry(os.environ.get("IMAGE_REPO") or DEFAULT_REPOSITORY)
            references = {image.name: builder.push(image, target) for image in images}
    except ImageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return progress.interrupted()
    for line in [json.dumps(references)] if chosen.json else references.values():
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
