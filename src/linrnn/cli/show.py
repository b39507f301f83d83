"""Show an entry of a catalogue: its description, options and source."""

import dataclasses
import importlib
import inspect
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from linrnn import recipes
from linrnn._options.catalogue import entries
from linrnn._options.import_path import is_import_path
from linrnn.cli._line.answers import doubt
from linrnn.cli._line.entries import CATALOGUES, package_of
from linrnn.cli._line.names import known_as
from linrnn.cli._line.output import answer, joined, row
from linrnn.cli._line.parser import Parser
from linrnn.cli._line.precomputed import precomputed
from linrnn.errors import DataError, LinrnnError, MissingExtraError


def parser() -> Parser:
    """The parser of the verb's arguments."""
    parser = Parser("show", __doc__, wrap=True)
    words = "a name that `linrnn list` prints, or the import path of a mixer"
    parser.add("name", metavar="NAME", help=words, kind="entry")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print everything of that name."""
    name = parser().parse_args(argv).name
    if is_import_path(name):
        from linrnn.cli._line.mixer_options import import_named

        import_named(name)
        kinds = ["mixers"]
    else:
        every = "mixer, task, learner, recipe or reproduction"
        name = known_as(every, name, _known(), map(package_of, CATALOGUES))
        kinds = [kind for kind in CATALOGUES if name in entries(package_of(kind))]
    shown = [(kind, page) for kind in kinds for page in _pages(kind, name)]
    row("\n".join(_describe(kind, name, page) for kind, page in shown))
    answer(lambda: {"entries": [_record(kind, name, page) for kind, page in shown]})
    return 0


def _known() -> list[str]:
    return [name for kind in CATALOGUES for name in entries(package_of(kind))]


def describe(kind: str, name: str) -> str:
    """The text `linrnn show` prints about one entry of a catalogue."""
    return "\n".join(_describe(kind, name, page) for page in _pages(kind, name))


def _pages(kind: str, name: str) -> "list[_Page]":
    """The pages of an entry, as they came with the package or computed."""
    came: list[dict[str, Any]] | None = precomputed("pages", f"{kind}/{name}")
    return pages(kind, name) if came is None else [_Page(**page) for page in came]


def pages(kind: str, name: str) -> "list[_Page]":
    """The pages of an entry, computed: of a recipe one for each scale, else one."""
    if kind == "recipes":
        return [_recipe(name, scale) for scale in recipes.scales(name)]
    return [_PAGES[kind](importlib.import_module(package_of(kind)).load(name))]


def _record(kind: str, name: str, page: "_Page") -> dict[str, Any]:
    """An entry for JSON."""
    options = [dict(zip(("name", "type", "default"), row, strict=True)) for row in page.options]
    about = {"kind": kind.removesuffix("s"), "name": name, "entry": page.entry}
    return joined(about, {"text": page.text, "facts": page.facts, "options": options})


def _describe(kind: str, name: str, page: "_Page") -> str:
    title = f"{kind.removesuffix('s')} {name}: {page.entry}"
    lines = [title, "=" * len(title), "", page.text, ""]
    lines += [f"{fact}: {value}" for fact, value in page.facts.items()]
    if page.options:
        lines += ["", *_table([("option", "type", "default"), *page.options])]
    return "\n".join(lines) + "\n"


Row = tuple[str, str, str]


class _Page(NamedTuple):
    entry: str
    text: str
    facts: dict[str, str]
    options: list[Row]


def _mixer(cls: Any) -> _Page:
    facts = {"Family": cls.family, "Forms": ", ".join(cls.forms)}
    if cls.choices is not None:
        facts["Design"] = ", ".join(f"{k} {v}" for k, v in vars(cls.choices).items())
    facts |= dict(line.split(": ") for line in _state(cls))
    for law, reason in cls.declared.items():
        name, _, form = law.partition(":")
        facts[f"Lacks the property {name!r}" + (f" with form={form!r}" if form else "")] = reason
    if cls.overflows:
        facts["Overflows float32 within 65,536 steps"] = cls.overflows
    parameters = inspect.signature(cls).parameters.values()
    options = [_row(p.name, p.annotation, p.default) for p in parameters]
    return _Page(_path(cls), inspect.getdoc(cls) or "", facts, options)


def _state(cls: Any) -> list[str]:
    """Lines on the parts of the state; none where a user's layer needs more than a width."""
    from linrnn.state_spec import describe as describe_state

    try:
        return describe_state(cls(8).state_spec(), "State")
    except (LinrnnError, TypeError, ValueError):
        return []


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _task(cls: Any) -> _Page:
    task = cls()
    facts = {
        "Metric": f"{task.metric}, {'higher' if task.higher_is_better else 'lower'} is better",
        "Chance level": f"{task.chance:g}",
        "Sequence length": f"{task.sequence_length} steps",
        "Inputs and outputs": f"{task.d_input} and {task.d_output}",
    }
    facts |= _example(task)
    facts |= {f"Published, {p.model}": f"{p.value:g} ({p.source})" for p in task.published}
    options = [_row(f.name, f.type, f.default) for f in dataclasses.fields(cls.Options)]
    return _Page(_path(cls), inspect.getdoc(cls) or "", facts, options)


def _example(task: Any) -> dict[str, str]:
    """An example in words and the baselines, or why there is none to show here."""
    try:
        facts = {"Example": task.example().replace("\n", "\n  ")}
        return facts | {f"Baseline, {k}": f"{v:.4g}" for k, v in task.baselines().items()}
    except (DataError, MissingExtraError) as error:
        doubt()  # it is there as soon as the data are
        return {"Example": f"none: {error}"}


def _recipe(name: str, scale: str) -> _Page:
    recipe = recipes.load(name, scale)
    other_scales = ", ".join(one for one in recipes.scales(name) if one != scale)
    seeds = ", ".join(map(str, recipe.seeds))
    origin = f"over the seeds {seeds}" if seeds else "as published; not run here"
    spread = "" if recipe.spread is None else f" ± {recipe.spread:g}"
    time = f"not known; needs {recipe.hardware}"
    if recipe.seconds is not None:
        time = f"{'' if seeds else 'about '}{recipe.seconds:.0f} s a run on {recipe.hardware}"
    facts = {
        "Scale": f"{scale}, beside {other_scales}" if other_scales else scale,
        "Expected": f"{recipe.expected:g}{spread} {origin}",
        "Time": time,
        "Shows": recipe.shows,
        "Source": recipe.source,
    }
    if recipe.departures:
        facts["Departures"] = recipe.departures
    return _Page(
        f'linrnn.recipes.load("{name}", "{scale}")',
        recipe.summary,
        facts,
        list(_leaves(recipe.config, "")),
    )


def _learner(cls: Any) -> _Page:
    parameters = inspect.signature(cls).parameters.values()
    options = [_row(p.name, p.annotation, p.default) for p in parameters]
    return _Page(_path(cls), inspect.getdoc(cls) or "", {}, options)


def _reproduction(cls: Any) -> _Page:
    facts = {"Source": cls.source}
    facts |= {f"Scale {scale}": text for scale, text in cls.scales.items()}
    facts["Seeds that a verdict needs"] = ", ".join(
        f"{cls.seeds_needed(scale)} ({scale})" for scale in cls.scales
    )
    tables = "\n\n".join("\n".join(table.markdown()) for table in cls.published)
    text = f"{inspect.getdoc(cls) or ''}\n\nPublished\n\n{tables}"
    return _Page(_path(cls), text, facts, [])


def _leaves(config: Any, prefix: str) -> Iterable[Row]:
    """Every field of a tree of dataclasses, under the dotted name `linrnn train` gives it."""
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name.removesuffix('_options')}"
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{name}.")
        elif isinstance(value, dict):
            yield from (_row(f"{name}.{key}", type(item), item) for key, item in value.items())
        else:
            yield _row(name, field.type, value)


def _row(name: str, annotation: Any, default: Any) -> Row:
    required = default is inspect.Parameter.empty or default is dataclasses.MISSING
    return (
        name,
        inspect.formatannotation(annotation).replace("typing.", ""),
        "(required)" if required else repr(default),
    )


def _table(rows: Sequence[Row]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    return [f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {value}" for name, kind, value in rows]


_PAGES = {
    "mixers": _mixer,
    "tasks": _task,
    "learners": _learner,
    "reproductions": _reproduction,
}
