"""The bibliography, from references.bib."""

import re
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "references.bib"
ARXIV = "https://arxiv.org/abs/"


def page() -> str:
    """Every entry of references.bib, under an anchor that is its key."""
    lines = ["# Bibliography", ""]
    for key, entry in sorted(read().items()):
        venue = entry.get("booktitle") or entry.get("journal") or entry.get("institution", "")
        eprint = entry.get("eprint")
        link = f" [arXiv:{eprint}]({ARXIV}{eprint})." if eprint else ""
        lines += [
            f"### {key} {{ #{key} }}",
            "",
            f"{entry['author']}. *{entry['title']}*. {venue}, {entry['year']}.{link}",
            "",
        ]
    return "\n".join(lines)


def read() -> dict[str, dict[str, str]]:
    """The fields of every entry, by key; understands the plain BibTeX of references.bib."""
    text = SOURCE.read_text(encoding="utf-8")
    entries = {}
    for key, body in re.findall(r"^@\w+\{(\w+),\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        fields = re.findall(r"(\w+)\s*=\s*\{(.*?)\}(?:,|\s*$)", body, re.DOTALL)
        entries[key] = {name: " ".join(value.split()) for name, value in fields}
    for entry in entries.values():
        people = [" ".join(reversed(p.split(", "))) for p in entry["author"].split(" and ")]
        entry["author"] = ", ".join(people)
    return entries
