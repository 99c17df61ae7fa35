"""Looks at the built site in a real browser: `python -m tools.docs.browser [--shots DIR]`, after `make docs`.

Every page is loaded at a desktop's and a telephone's width; one that is wider than the window is a fault. A Chromium
must be on PATH, or be named by `EPD_BROWSER` (a command line, such as one that enters a chroot).

The tricky idea: a headless Chromium has no window narrower than 500 pixels, so a page of ours shows the site in frames
of the width that is wanted, and writes down what it measured.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from typing_extensions import override

from tools.docs.page import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

SITE: Final = ROOT / "build" / "site"
WIDTHS: Final = (1280, 390)
HEIGHT: Final = 1600
NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
SECONDS: Final = 300
"""How long the browser may take for everything."""
_MEASURE: Final = """<!doctype html><body><script>
const pages = PAGES, widths = WIDTHS, out = [];
(async () => {
  for (const width of widths) for (const page of pages) {
    const frame = document.createElement("iframe");
    frame.width = width; frame.height = 800; frame.src = "/" + page;
    await new Promise(done => { frame.onload = done; document.body.append(frame); });
    out.push([page, width, frame.contentDocument.documentElement.scrollWidth]);
    frame.remove();
  }
  await fetch("/found", {method: "POST", body: JSON.stringify(out)});
})();
</script>"""
_SHOW: Final = (
    '<!doctype html><body style="margin:0"><iframe width={width} height={height} frameborder=0 src="/{page}">'
)


class NoBrowserError(Exception):
    """There is no browser here."""


def browser() -> list[str]:
    """The command that starts a Chromium.

    Raises:
        NoBrowserError: There is none; the message says what to do.
    """
    if named := os.environ.get("EPD_BROWSER"):
        return shlex.split(named)
    result = next((path for path in map(shutil.which, NAMES) if path), None)
    if result is None:
        raise NoBrowserError(f"no browser: install one of {', '.join(NAMES)}, or name a command line in EPD_BROWSER")
    return [result]


@contextmanager
def served(site: Path, extra: dict[str, str]) -> Iterator[tuple[str, queue.Queue[str]]]:
    """The site, and pages of ours beside it.

    Yields:
        Its address on this machine, and what the pages post.
    """
    posted: queue.Queue[str] = queue.Queue()

    class Handler(http.server.SimpleHTTPRequestHandler):
        @override
        def do_GET(self) -> None:
            text = extra.get(self.path)
            if text is None:
                super().do_GET()
            else:
                self._answer(text)

        def do_POST(self) -> None:
            posted.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self._answer("")

        def _answer(self, text: str) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Nothing: what is asked for is known."""

    handler = functools.partial(Handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", posted
        server.shutdown()


def command(*arguments: str) -> list[str]:
    """A headless Chromium with a profile that is thrown away."""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
    return [*browser(), *flags, *arguments]


def measured(site: Path = SITE, widths: tuple[int, ...] = WIDTHS) -> list[tuple[str, int, int]]:
    """Page, width of the window, and width of the page, for every page and window."""
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    text = _MEASURE.replace("PAGES", json.dumps(pages)).replace("WIDTHS", json.dumps(widths))
    with served(site, {"/measure": text}) as (address, posted):
        # Without a picture or a text to write it stays until it is ended.
        looking = command("--remote-debugging-port=0", f"{address}/measure")
        quiet = subprocess.DEVNULL
        with subprocess.Popen(looking, stdout=quiet, stderr=quiet, start_new_session=True) as process:
            try:
                return [(page, width, wide) for page, width, wide in json.loads(posted.get(timeout=SECONDS))]
            finally:
                os.killpg(process.pid, signal.SIGTERM)  # Chromium is many processes


def shoot(pages: list[str], folder: Path, site: Path = SITE, height: int = HEIGHT) -> None:
    """Write a PNG of the upper part of each page at each width."""
    for page in pages:
        for width in WIDTHS:
            text = _SHOW.format(width=width, height=height, page=quote(page))
            target = folder / f"{page.removesuffix('.html').replace('/', '-')}-{width}.png"
            with served(site, {"/show": text}) as (address, _):
                window = f"--window-size={max(500, width)},{height}"
                looking = command(f"--screenshot={target}", window, f"{address}/show")
                subprocess.run(looking, capture_output=True, check=True, timeout=SECONDS)


def main() -> int:
    """Entry point; the exit status is 1 when a page is too wide, 2 when there is no browser or no site."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs.browser", description=__doc__)
    parser.add_argument("--shots", type=Path, metavar="DIR", help="also write a PNG of each page at each width")
    parser.add_argument("--page", action="append", metavar="PATH", help="with --shots: this page alone; repeatable")
    given = parser.parse_args()
    if not SITE.is_dir():
        print(f"{SITE} is not there: run `make docs`", file=sys.stderr)
        return 2
    try:
        result = measured()
        wide = [(page, width, real) for page, width, real in result if real > width]
        if given.shots:
            shoot(given.page or sorted({page for page, _, _ in result}), given.shots)
    except NoBrowserError as error:
        print(error, file=sys.stderr)
        return 2
    for page, width, real in wide:
        print(f"{page}: {real} pixels wide in a window of {width}")
    print(f"{len(result)} views of {len(result) // len(WIDTHS)} pages, {len(wide)} too wide")
    return 1 if wide else 0


if __name__ == "__main__":
    sys.exit(main())
