"""The lists that are made from the catalogues; run it to write them into their pages."""

import csv
import re
from inspect import signature
from pathlib import Path

from _pages import cell_functions

from linrnn import RNN, mixers
from linrnn._options.catalogue import stems
from linrnn.state_spec import describe

DROP_IN = Path(__file__).parent / "drop-in.md"
DEPLOYMENT = Path(__file__).parent / "deployment.md"
CELL_FUNCTIONS = Path(__file__).parent / "cell-functions.md"
PUBLISHED = Path(__file__).parent / "published-systems.md"
COMPARED = ("configuration", "part", "forward", "step", "gradients")
COMPARISONS = Path(__file__).parents[1] / "results" / "mixers" / "published.csv"
WIDTH = 64  # of the layers whose states are listed
FORMS = {
    "vector": "`h_n`, as `nn.GRU`",
    "pair": "`(h_n, c_n)`, as `nn.LSTM`",
    "rest": "`(h_n, c_n)`: last output, state",
}
SAME = {"gru": "all of `nn.GRU`", "lstm": "all of `nn.LSTM`"}
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


def state_table() -> str:
    """A row for each mixer: what `linrnn.RNN` returns as its state, and of what that is made."""
    rows = ["| mixer | returned | numbers | state of a layer | equal to |"]
    rows.append("| --- | --- | ---: | --- | --- |")
    for name in stems(mixers.__name__):
        rnn = RNN(name, WIDTH, WIDTH, device="meta")
        size = rnn.hidden.size()
        found = describe(rnn.cells[0].mixer.state_spec())
        parts = ", ".join(map(_plainly, found))
        numbers = "grows" if size is None else str(size * (1 + (rnn.hidden.form == "pair")))
        row = [f"`{name}`", FORMS[rnn.hidden.form], numbers, parts, SAME.get(name, "")]
        rows.append(f"| {' | '.join(row)} |")
    return "\n".join(rows)


def _plainly(line: str) -> str:
    """``mean (d_state)`` of ``state['mean']: (batch, d_state) real``."""
    name, _, rest = line.partition(": ")
    *shape, kind = rest.split(" ")
    path = ".".join(re.findall(r"\w+", name)[1:])
    axes = " ".join(shape).replace("(batch, ", "(").replace("(batch)", "")
    return " ".join(word for word in (path, axes, "" if kind == "real" else kind) if word)


def export_table() -> str:
    """A row for each mixer: whether a step and a sequence of it become ONNX, or why not."""
    rows = ["| mixer | step | sequence | why not |", "| --- | --- | --- | --- |"]
    for name in stems(mixers.__name__):
        reason = mixers.build(name, 4).declared.get("constant_memory")
        answer = "yes" if reason is None else _bounded(name)
        row = [f"`{name}`", answer, answer, reason if answer == "no" else ""]
        rows.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(rows)


def _bounded(name: str) -> str:
    """The option that gives a mixer a state of fixed size, in words, or no."""
    for option in sorted({"window", "chunk"} & {*signature(mixers.load(name)).parameters}):
        if "constant_memory" not in mixers.build(name, 4, {option: 4}).declared:
            return f"with `{option}`"
    return "no"


def published_table() -> str:
    """A row for each configuration of a public implementation, with what differs from it here."""
    with COMPARISONS.open(newline="", encoding="utf-8") as file:
        comparisons = list(csv.DictReader(file))
    columns = ("system", "public implementation", *COMPARED, "note")
    rows = [f"| {' | '.join(columns)} |"]
    rows.append("| --- | --- | --- | --- | ---: | ---: | ---: | --- |")
    for row in comparisons:
        system, *others = row.values()
        rows.append(f"| {' | '.join([f'`{system}`', *others])} |")
    return "\n".join(rows)


def filled_in(text: str, table: str) -> str:
    """A page with a table in its marked block."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", text)


if __name__ == "__main__":
    for page, table in (
        (DROP_IN, state_table()),
        (DEPLOYMENT, export_table()),
        (CELL_FUNCTIONS, cell_functions.table()),
        (PUBLISHED, published_table()),
    ):
        page.write_text(filled_in(page.read_text(encoding="utf-8"), table), encoding="utf-8")
