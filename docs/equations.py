"""A docstring's "Equation" as HTML: formulas in columns, and sentences with formulas in them.

A line is a formula where its first column says that one thing equals another; two spaces and more
part columns. Text in quotes, or one word before a formula, labels it. Lines that were
broken because they were full are put together again.
"""

import re
from html import escape
from itertools import pairwise

from tex import CLOSING, RELATIONS, NotUnderstoodError, Token, is_word, tex, tokens

FULL = 92  # columns: a line that its next word would make longer was broken for that
COLUMNS = re.compile(r"\s{2,}")
SENTENCE = re.compile(r"\.\s+[A-Z]|\.$")
DANGLING = re.compile(r"\b(a|an|and|as|at|by|for|from|has|in|is|of|on|or|that|the|to|where|with)$")
LABEL = re.compile(r'^("[^"]*"|[a-z][a-z_0-9]*:?|[a-z]+ "[^"]*":?|[a-z-]+:)$')
JOINING = {"concat", "over", "heads", "of", "if", "else", "for", "where", "step", "all", "each"}
"""Words that belong into a formula."""
DEFINES = {"=", "<-", "<=", "~"}


def html(body: str) -> str:
    """The section as one block of HTML, without empty lines.

    Raises:
        NotUnderstoodError: a formula in it is none.
    """
    rows: list[str] = []
    out: list[str] = []
    for kind, text in blocks(body):
        if kind == "formula":
            rows.append(_row(text))
            continue
        out += _grid(rows)
        rows = []
        out.append(f"<p>{inline(text)}</p>")
    out += _grid(rows)
    # a search leaves out all up to the first end of such a tag, which is why it is no div
    return '<section class="equation" data-search-exclude>\n' + "\n".join(out) + "\n</section>"


def _grid(rows: list[str]) -> list[str]:
    return ['<div class="formulas">', *rows, "</div>"] if rows else []


def blocks(body: str) -> list[tuple[str, str]]:
    """Formulas a line each, labelled remarks, and paragraphs, in their order."""
    body = re.sub(r"(?<=\S) {2,}(?=(=|<-) )", " ", body)  # signs below one another
    lines = [line for line in body.split("\n") if line.strip()]
    found: list[tuple[str, str]] = []
    for at, (kind, line) in enumerate(zip(_kinds(lines), lines, strict=True)):
        if found and _continues(found[-1], lines[at - 1], kind, line):
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
        else:
            found.append((kind, line.strip()))
    return [("formula" if kind == "label" else kind, text) for kind, text in found]


def _kinds(lines: list[str]) -> list[str]:
    """The kind of each line: a formula, a label with a remark, or prose."""
    kinds = ["formula" if is_formula(x) else "label" if has_label(x) else "prose" for x in lines]
    for at, (line, after) in enumerate(pairwise(lines)):
        full = len(line.rstrip()) + 1 + len(after.split()[0]) > FULL
        if kinds[at] == "prose" and full and not line.rstrip().endswith((":", ".")):
            kinds[at + 1] = "prose"
        elif kinds[at] == "formula" and kinds[at + 1] == "prose" and after[0] != " ":
            whole = COLUMNS.search(line.strip()) or re.match(r"[A-Z][a-z]+ ", after)
            open_ended = DANGLING.search(line) or (full and not whole)
            kinds[at] = "prose" if open_ended and not has_label(line) else "formula"
    return kinds


def _continues(block: tuple[str, str], previous: str, kind: str, line: str) -> bool:
    """Whether a line goes on with what the one before it said."""
    if line[0] == " " and (kind != "formula" or line.strip()[0] in "+-"):
        return kind != "label"
    if not block[0] == kind == "prose":
        return False
    if len(previous.rstrip()) + 1 + len(line.split()[0]) > FULL or DANGLING.search(previous):
        return True
    if previous.rstrip().endswith((".", ":", ";")):
        return False
    last = tokens(previous)
    return is_word(last, len(last) - 1) or previous.rstrip().endswith(",") or line[0].islower()


def has_label(line: str) -> bool:
    """Whether a line begins with a word in a separate column."""
    first, *rest = COLUMNS.split(line.strip())
    return bool(rest) and LABEL.match(first) is not None


def is_formula(line: str) -> bool:
    """Whether a line defines something, perhaps behind a label."""
    cells = COLUMNS.split(line.strip())
    if len(cells) > 1 and LABEL.match(cells[0]):
        cells = cells[1:]
    if SENTENCE.search(cells[0]):
        return False
    found = tokens(cells[0])
    at = _relation(cells[0])
    return at is not None and not any(is_word(found, i) for i in range(at))


def _relation(text: str) -> int | None:
    """Which token is the first relation outside of all brackets."""
    depth = 0
    for at, token in enumerate(tokens(text)):
        depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
        if depth == 0 and token.spaced and token.kind == "op" and token.text in DEFINES:
            return at
    return None


def _row(line: str) -> str:
    """A row of the grid: label, left side, right side and what else is on the line."""
    label, *cells = COLUMNS.split(line)
    if not (cells and LABEL.match(label)):
        label, cells = "", [label, *cells]
    left = right = ""
    if is_formula(cells[0]):
        formula, remark = _without_remark(cells[0])
        left, right = _sides(formula)
        cells[:1] = [remark] if remark else []
    rest = "".join(_beside(cell) for cell in cells)
    first = f"<span>{right}</span>" if right else ""
    return (
        f'<div class="row"><span class="label">{escape(label.strip(chr(34)))}</span>'
        f'<span class="left">{left}</span><span class="right">{first}{rest}</span></div>'
    )


def _beside(cell: str) -> str:
    kind = "also" if is_formula(cell) else "also remark"
    return f'<span class="{kind}">{_cell(cell)}</span>'


def _without_remark(cell: str) -> tuple[str, str]:
    """A formula, and the sentence that a comma or colon sets off from it."""
    found = tokens(cell)
    places = _places(cell, [token.text for token in found])
    depth, cut = 0, None
    for at in range(len(found)):
        text = found[at].text
        depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
        if depth:
            continue
        if text in (",", ":", ";") and at > (_relation(cell) or 0):
            cut = at
        elif is_word(found, at) and text not in JOINING:
            break
    else:
        return cell, ""
    if cut is None:
        return cell, ""
    comma = places[cut]
    return cell[: comma + 1], cell[comma + 1 :].strip()


def _sides(cell: str) -> tuple[str, str]:
    """A formula, parted before its first relation."""
    at = _relation(cell)
    if at is None:
        return "", _math(cell)
    found = tokens(cell)
    place = _places(cell, [token.text for token in found])[at]
    return _math(cell[:place].strip()) if at else "", _math("{}" + cell[place:].strip())


def _cell(cell: str) -> str:
    """A formula where it is one, and otherwise a remark with formulas in it."""
    if is_formula(cell):
        return _math(cell)
    return inline(cell)


def _math(text: str, *, display: bool = True, is_set: bool = False) -> str:
    prefix = "{}" if text.startswith("{}") else ""
    body = tex(text.removeprefix("{}"), display=display)
    if is_set:
        body = re.sub(r"^([RC])", r"\\mathbb{\1}", body)
    style = r"\displaystyle " if display else ""
    return f'<span class="tex">\\({style}{prefix}{escape(body, quote=False)}\\)</span>'


def inline(text: str) -> str:
    """A sentence, the formulas in it typeset and its names of code as such."""
    out: list[str] = []
    for kind, part in runs(text):
        if kind == "math":
            said = re.match(r"[RC]\^", part) and re.search(
                r"in $|\\mathbb\{[RC]\}[^ ]*</span>, $", "".join(out)
            )
            out.append(_math(part, display=False, is_set=bool(said)))
        elif kind == "code":
            out.append(f"<code>{escape(part.strip('`'), quote=False)}</code>")
        else:
            out.append(escape(part, quote=False))
    return "".join(out)


def runs(text: str) -> list[tuple[str, str]]:
    """The parts of a sentence, by kind: text, code and math, spaces kept in the text."""
    found = tokens(text)
    places = _places(text, [token.text for token in found])
    out: list[tuple[str, str]] = []
    at = end = 0
    while at < len(found):
        stop = _formula_end(found, at)
        if found[at].kind != "code" and stop == at:
            at += 1
            continue
        stop = max(stop, at + 1)
        start, last = places[at], places[stop - 1] + len(found[stop - 1].text)
        if start > end:
            out.append(("text", text[end:start]))
        out.append(("code" if found[at].kind == "code" else "math", text[start:last]))
        at, end = stop, last
    if end < len(text):
        out.append(("text", text[end:]))
    return out


def _places(text: str, pieces: list[str]) -> list[int]:
    places, at = [], 0
    for piece in pieces:
        at = text.index(piece, at)
        places.append(at)
        at += len(piece)
    return places


def _formula_end(found: list[Token], at: int) -> int:
    """Where the longest formula that starts at a token ends; the same token where there is none."""
    if not _opens(found, at):
        return at
    stop, depth = at, []
    good = at
    while stop < len(found):
        token = found[stop]
        if token.text in CLOSING and token.kind == "op":
            depth.append(CLOSING[token.text])
        elif depth and token.text == depth[-1]:
            depth.pop()
        elif token.text in (")", "]", "}") or (not depth and _ends(found, stop)):
            break
        stop += 1
        if not depth and token.text not in RELATIONS and token.text not in ("*", "/", "+", "-"):
            good = stop
    return good if _is_worth_it(found[at:good]) and _parses(found[at:good]) else at


def _opens(found: list[Token], at: int) -> bool:
    token = found[at]
    if token.text == "in" and at:
        return False  # of the sentence
    if token.kind == "op":
        return token.text in ("(", "[", "{", "|", "+-", "<", "<=", "=", "-", "~")
    return token.kind in ("name", "number") and not is_word(found, at)


def _ends(found: list[Token], at: int) -> bool:
    """Whether a word or a mark of the sentence stands here."""
    token = found[at]
    mark = token.text in (",", ";", ":", "!", "%") or (token.text == "." and not token.spaced)
    return mark or is_word(found, at)


def _is_worth_it(part: list[Token]) -> bool:
    """No lone number, and no bracket around words alone."""
    names = [token for i, token in enumerate(part) if token.kind == "name" and not is_word(part, i)]
    signs = [token for token in part if token.text in (*RELATIONS, "/", "^", "+-")]
    interval = part and part[0].text in "[(" and any(token.text == "," for token in part)
    words = any(is_word(part, i) for i in range(len(part)))
    if part and part[0].text in "([{" and words:
        return False
    return bool(names or signs or interval)


def _joined(part: list[Token]) -> str:
    return "".join((" " if token.spaced and i else "") + token.text for i, token in enumerate(part))


def _parses(part: list[Token]) -> bool:
    try:
        tex(_joined(part), display=False)
    except NotUnderstoodError:
        return False
    return True
