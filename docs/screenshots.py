"""Look at the built site in headless Chromium: `python docs/screenshots.py [--out FOLDER]`.

Pages are opened in a frame as wide as a desk's screen and as a telephone's, in light and in dark.
Reported is what reaches over the right edge and cannot be scrolled, text with too little contrast
for WCAG 2.1 AA, formulas that are not set, and requests to another host. Names are typed into the
box for searches, and it is reported whose page is not found first; docs/search.js asks for every
name, without a browser. With ``--out`` pictures of every kind of page are kept. Where there is no
Chromium nothing is looked at, and a message says so.
"""

import argparse
import functools
import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SITE = Path(__file__).parents[1] / "site"
NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = {"desk": 1280, "phone": 390}
SCHEMES = {"dark": 0, "light": 1}
"""By name, what Chromium calls preferredColorScheme."""
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
SEARCHES = {
    "LRU": "mixers/lru/",
    "gru": "mixers/gru/",
    "Mamba": "mixers/mamba/",
    "S4": "mixers/s4/",
    "minGRU": "mixers/mingru/",
}
"""Words, and the page that has to be found first: some whose name is a part of many others."""
HARNESS = Path(__file__).with_name("harness.html")
# Seconds for a browser's start, and for a page or a search: it takes one, and a tenth of one.
START, PATIENCE = 30, 10


class Quiet(SimpleHTTPRequestHandler):
    """Serves the site, and as /harness.html the page that looks at others and posts its finds."""

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def translate_path(self, path: str) -> str:
        """The harness lies beside this file and not in the site."""
        if path.startswith("/harness.html"):
            return str(HARNESS)
        return super().translate_path(path)

    def do_POST(self) -> None:
        """Hand on what the harness has found."""
        found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        self.server.answers.put(found)


class Site(ThreadingHTTPServer):
    """The built site, on this machine and for no other; ``answers`` holds what a harness posted."""

    # A browser asks for a page's files at once; with the usual queue of 5 some would wait a second.
    request_queue_size = 128

    def __init__(self, site: Path):
        self.answers: queue.Queue[list[dict[str, str]]] = queue.Queue()
        super().__init__(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a browser that hung up, as one does that was stopped."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def __enter__(self) -> "Site":
        """Begin to serve."""
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        """End."""
        self.shutdown()
        self.server_close()

    def harness(self, **asked: object) -> str:
        """The address of the page that opens others in a frame."""
        asking = urllib.parse.quote(json.dumps(asked))
        return f"http://127.0.0.1:{self.server_port}/harness.html?{asking}"


def chromium() -> str | None:
    """The browser's path, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def opened(browser: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The browser at work on an address, with a fresh profile; both are gone afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += ["--no-first-run", "--window-size=1480,1600", f"--user-data-dir={profile}"]
        quiet = subprocess.DEVNULL
        with subprocess.Popen([*command, *options], stdout=quiet, stderr=quiet) as running:
            try:
                yield running
            finally:
                running.kill()


def preference(scheme: str) -> str:
    """The option of a browser whose reader prefers light or dark pages."""
    return f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"


def look(
    browser: str, server: Site, scheme: str = "light", **asked: object
) -> list[dict[str, str]]:
    """The answers of the harness. A browser that gives none, as happens, is started once more."""
    for _ in range(2):
        address = server.harness(**asked)
        with opened(browser, preference(scheme), address), suppress(queue.Empty):
            tasks = len(asked["pages"]) + len(asked.get("searches", ()))
            return server.answers.get(timeout=START + PATIENCE * tasks)
        sys.stderr.write("docs: the browser gave no answers; once more\n")
    raise RuntimeError("the harness gave no answers: the browser stood still")


def pages(site: Path) -> list[str]:
    """Every page of the site, as addresses below its root."""
    found = (path.parent.relative_to(site).as_posix() for path in site.rglob("index.html"))
    return sorted("" if path == "." else f"{path}/" for path in found)


def complaints(site: Path, browser: str, chosen: list[str]) -> list[str]:
    """Everything that is not as it should be, a line each."""
    with Site(site) as server:
        return [
            f"{name}, {scheme}: {found['page'] or 'landing'}: {found['what']}"
            for name, width in WIDTHS.items()
            for scheme in SCHEMES
            for found in look(browser, server, scheme, pages=chosen, width=width)
        ]


def unfound(site: Path, browser: str, searches: dict[str, str]) -> list[str]:
    """The searches that do not find their page first, a line each."""
    with Site(site) as server:
        width = WIDTHS["desk"]
        found = look(browser, server, pages=[], searches=searches, width=width)
        return [complaint["what"] for complaint in found]


def keep_pictures(site: Path, browser: str, out: Path) -> None:
    """A picture of every kind of page, at both widths, in both schemes."""
    out.mkdir(parents=True, exist_ok=True)
    with Site(site) as server:
        for kind, page in KINDS.items():
            for name, width in WIDTHS.items():
                for scheme in SCHEMES:
                    address = server.harness(pages=[page], width=width, show=True)
                    place = out / f"{kind}-{name}-{scheme}.png"
                    kept = ("--virtual-time-budget=60000", f"--screenshot={place}")
                    with opened(browser, preference(scheme), *kept, address) as running:
                        running.wait(timeout=300)


def main() -> int:
    """Print complaints; their number above 0 is a failure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="a folder for pictures of every kind of page")
    parser.add_argument("--all", action="store_true", help="look at every page, not one a kind")
    options = parser.parse_args()
    browser = chromium()
    if browser is None:
        sys.stderr.write("docs: Chromium is not installed, so the pages were not checked\n")
        return 0
    if options.out:
        keep_pictures(SITE, browser, options.out)
    chosen = pages(SITE) if options.all else list(KINDS.values())
    lines = complaints(SITE, browser, chosen) + unfound(SITE, browser, SEARCHES)
    sys.stderr.write("".join(f"docs: {line}\n" for line in lines))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
