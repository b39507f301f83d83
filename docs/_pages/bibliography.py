"""The bibliography, from references.bib."""

import re
import unicodedata
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "references.bib"
ARXIV = "https://arxiv.org/abs/"
ACCENT = re.compile(r"""\\(["'`^~c])\s*\{?(\w)\}?""")
MARKS = {'"': "\u0308", "'": "\u0301", "`": "\u0300", "^": "\u0302", "~": "\u0303", "c": "\u0327"}
"""Accents of TeX, as the characters that Unicode puts on the letter before."""


def page() -> str:
    """Every entry of references.bib, under an anchor that is its key."""
    lines = ["# Bibliography", ""]
    for key, entry in sorted(read().items()):
        venue = entry.get("booktitle") or entry.get("journal") or entry.get("institution", "")
        eprint = entry.get("eprint")
        link = f" [arXiv:{eprint}]({ARXIV}{eprint})." if eprint else ""
        place = f"{venue}, {entry['year']}" if venue else entry["year"]
        lines += [
            f"### {key} {{ #{key} }}",
            "",
            f"{entry['author']}. *{entry['title']}*. {place}.{link}",
            "",
        ]
    return "\n".join(lines)


def read() -> dict[str, dict[str, str]]:
    """The fields of every entry, by key; understands the plain BibTeX of references.bib."""
    text = SOURCE.read_text(encoding="utf-8")
    entries = {}
    for key, body in re.findall(r"^@\w+\{(\w+),\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        fields = re.findall(r"(\w+)\s*=\s*\{(.*?)\}(?=,\s*\w+\s*=|,?\s*$)", body, re.DOTALL)
        entries[key] = {name: plain(" ".join(value.split())) for name, value in fields}
    for entry in entries.values():
        people = [" ".join(reversed(p.split(", "))) for p in entry["author"].split(" and ")]
        entry["author"] = ", ".join(people)
    return entries


def plain(text: str) -> str:
    """A field as it is printed: letters with their accents, and no braces."""
    accented = ACCENT.sub(lambda found: found[2] + MARKS[found[1]], text)
    return unicodedata.normalize("NFC", re.sub(r"[{}]", "", accented))
