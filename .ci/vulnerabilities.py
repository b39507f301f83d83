"""Ask a database of known vulnerabilities about every package of the lock.

    python .ci/vulnerabilities.py

Those of other platforms and Pythons are among them. Ends with 1 where a package has one, where one
could not be looked up, and without the network.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import locked


def lists(packages: list[locked.Package]) -> list[list[str]]:
    """The pins without their markers, in as few lists as hold no name twice."""
    found: list[dict[str, str]] = []
    for package in packages:
        free = next((pins for pins in found if package.name not in pins), None)
        if free is None:
            free = {}
            found.append(free)
        free[package.name] = package.pin
    return [list(pins.values()) for pins in found]


def main() -> int:
    """Ask about each list, and say how many packages passed."""
    packages = locked.everything()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for number, pins in enumerate(lists(packages)):
            path = Path(folder, f"{number}.txt")
            path.write_text("\n".join(pins) + "\n", encoding="utf-8")
            command = [sys.executable, "-m", "pip_audit", "--strict", "--disable-pip", "--no-deps"]
            done = subprocess.run([*command, "-r", str(path)], check=False)
            failed |= done.returncode != 0
    if not failed:
        sys.stdout.write(f"vulnerabilities: none known in {len(packages)} packages\n")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
