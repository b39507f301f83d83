"""The lists that are made from the catalogues; run it to write them into README.md."""

import re
from pathlib import Path

from linrnn import mixers
from linrnn._catalogue import stems

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"(<!-- mixers: [^>]*-->\n).*?(<!-- end of mixers -->)", re.DOTALL)


def by_family() -> dict[str, list[str]]:
    """The mixers of this package under the words for their families."""
    names = stems(mixers.__name__)
    return mixers.by_family({name: mixers.load(name).family for name in names})


def mixer_table() -> str:
    """A row for each family."""
    rows = [
        f"| {heading} | {', '.join(f'`{name}`' for name in names)} |"
        for heading, names in by_family().items()
    ]
    return "\n".join(["| family | mixers |", "| --- | --- |", *rows])


def filled_in(text: str) -> str:
    """A page with the table of mixers in its marked block."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{mixer_table()}\n\n{found[2]}", text)


if __name__ == "__main__":
    README.write_text(filled_in(README.read_text(encoding="utf-8")), encoding="utf-8")
