"""Look at the built site in headless Chromium: `python docs/screenshots.py [--out FOLDER]`.

Pages are opened in a frame as wide as a desk's screen and as a telephone's. Reported is what
reaches over the right edge and cannot be scrolled, formulas that are not set, and requests to
another host. With ``--out`` pictures of every kind of page are kept. Where there is no Chromium
nothing is looked at, and that is said.
"""

import argparse
import functools
import html
import json
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SITE = Path(__file__).parents[1] / "site"
NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = {"desk": 1440, "phone": 390}
KINDS = {
    "landing": "",
    "tutorial": "tutorials/first-layer/",
    "how-to": "drop-in/",
    "mixer": "mixers/mamba/",
    "systems": "mixers/",
    "guide": "which-mixer/",
    "result": "results/lru-table-1-cpu/report/",
    "results": "results/",
    "reference": "reference/ops/",
    "explanation": "layers/",
    "guarantees": "guarantees/",
    "gallery": "gallery/",
    "bibliography": "references/",
}
HARNESS = Path(__file__).with_name("harness.html")


class Quiet(SimpleHTTPRequestHandler):
    """Serves the site and, under /harness.html, the page that looks at others."""

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def translate_path(self, path: str) -> str:
        """The harness lies beside this file and not in the site."""
        if path.startswith("/harness.html"):
            return str(HARNESS)
        return super().translate_path(path)


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The address under which this machine, and no other, finds the site."""
    handler = functools.partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def chromium() -> str | None:
    """The browser's path, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def call(browser: str, address: str, *options: str) -> str:
    """What a page has become after its scripts ran."""
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--virtual-time-budget=60000", "--window-size=1480,1600", *options, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout


def harness(base: str, **asked: object) -> str:
    """The address of the page that opens others in a frame."""
    return f"{base}/harness.html?{urllib.parse.quote(json.dumps(asked))}"


def look(browser: str, base: str, **asked: object) -> list[dict[str, str]]:
    """The answers of the harness."""
    page = call(browser, harness(base, **asked), "--dump-dom")
    found = re.search(r'<pre id="answers">(.*?)</pre>', page, re.DOTALL)
    if found is None:
        raise RuntimeError("the harness gave no answers; the browser ended before its scripts did")
    return json.loads(html.unescape(found[1]))


def pages(site: Path) -> list[str]:
    """Every page of the site, as addresses below its root."""
    found = (path.parent.relative_to(site).as_posix() for path in site.rglob("index.html"))
    return sorted("" if path == "." else f"{path}/" for path in found)


def complaints(site: Path, browser: str, chosen: list[str]) -> list[str]:
    """Everything that is not as it should be, a line each."""
    with served(site) as base:
        lines = []
        for name, width in WIDTHS.items():
            for found in look(browser, base, pages=chosen, width=width):
                lines.append(f"{name}: {found['page'] or 'landing'}: {found['what']}")
    return lines


def keep_pictures(site: Path, browser: str, out: Path) -> None:
    """A picture of every kind of page, at both widths, in both schemes."""
    out.mkdir(parents=True, exist_ok=True)
    with served(site) as base:
        for kind, page in KINDS.items():
            for name, width in WIDTHS.items():
                for scheme, number in (("dark", 0), ("light", 1)):
                    place = out / f"{kind}-{name}-{scheme}.png"
                    address = harness(base, pages=[page], width=width, show=True)
                    colours = f"--blink-settings=preferredColorScheme={number}"
                    call(browser, address, colours, f"--screenshot={place}")


def main() -> int:
    """Print complaints; their number above 0 is a failure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="a folder for pictures of every kind of page")
    parser.add_argument("--all", action="store_true", help="look at every page, not one a kind")
    options = parser.parse_args()
    browser = chromium()
    if browser is None:
        sys.stderr.write("docs: no Chromium here, so nobody looked at the pages\n")
        return 0
    if options.out:
        keep_pictures(SITE, browser, options.out)
    chosen = pages(SITE) if options.all else list(KINDS.values())
    lines = complaints(SITE, browser, chosen)
    sys.stderr.write("".join(f"docs: {line}\n" for line in lines))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
