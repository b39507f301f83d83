"""Write the table of defaults, constants and starts again: python tests/golden/constants.py

What was published or tuned is data. `constants.json` has every default of every mixer, learner,
part and entry point, every number that stands alone in their files, the blocks, recipes, and how
each parameter starts, each with where it comes from. A test compares it, so that whoever changes
one changes the table too, and says why.
"""

import ast
import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

import linrnn
from linrnn import RNN, SequenceModel, generation, learn, mixers, recipes, train
from linrnn.block import BLOCKS
from linrnn.errors import LinrnnError
from linrnn.learn._parts.session import LearningSession
from linrnn.learn._parts.text import LearningText
from linrnn.train.config import to_json

HERE = Path(__file__).parent
TABLE = HERE / "constants.json"
WIDTH = 32
ROOMS = ("mixers", "nn", "learn")
NOT_AN_OPTION = {"self", "device", "dtype"}


def plain(value: Any) -> Any:
    """A default as JSON has it."""
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


def defaults(of: Any) -> dict[str, Any]:
    """The defaults of what a function or class takes."""
    named = inspect.signature(of).parameters.items()
    return {
        n: plain(p.default)
        for n, p in named
        if n not in NOT_AN_OPTION and p.default is not inspect.Parameter.empty
    }


def source(of: Any) -> str:
    """The reference in a docstring."""
    text = inspect.getdoc(of) or ""
    said = re.search(r"^Reference:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    return " ".join(said[1].split()) if said else ""


def starts(module: torch.nn.Module) -> dict[str, Any]:
    """Shape, mean, standard deviation, smallest and largest number of each parameter."""
    found = {}
    for name, p in module.named_parameters():
        x = p.detach().double() if not p.is_complex() else torch.view_as_real(p.detach()).double()
        sizes = (x.mean(), x.std(correction=0), x.min(), x.max()) if x.numel() else ()
        found[name] = [list(p.shape), *(float(f"{float(v):.4g}") for v in sizes)]
    return found


def made(build: Any) -> dict[str, Any] | None:
    """The starts of what is built with a seed; None: it is refused."""
    torch.manual_seed(0)
    try:
        return starts(build())
    except LinrnnError:
        return None


def choices(of: Any) -> dict[str, tuple[Any, ...]]:
    """The options that are one of several words, with all but their default."""
    hints, named = get_type_hints(of.__init__), inspect.signature(of).parameters
    return {
        n: tuple(v for v in get_args(hint) if v != named[n].default)
        for n, hint in hints.items()
        if n in named and get_origin(hint) is Literal
    }


def of_mixer(name: str) -> dict[str, Any]:
    layer = mixers.load(name)
    first = made(lambda: layer(WIDTH))
    others = {}
    for option, values in choices(layer).items():
        for value in values:
            found = made(lambda option=option, value=value: layer(WIDTH, **{option: value}))
            if found is not None and found != first:
                changed = {n: v for n, v in found.items() if (first or {}).get(n) != v}
                others[f"{option}={value}"] = changed
    return {
        "source": source(layer), "options": defaults(layer), "starts": first, "choices": others
    }  # fmt: skip


def of_learner(name: str) -> dict[str, Any]:
    rule = learn.load(name)
    return {"source": source(rule), "options": defaults(rule)}


def of_block(kind: str) -> dict[str, Any]:
    """How what stands around a mixer starts, in a stack of two of a mixer without a widening."""
    stack = made(lambda: SequenceModel(8, 8, mixer="lru", d_model=WIDTH, n_layers=2, block=kind))
    around = {n: v for n, v in (stack or {}).items() if ".mixer." not in n}
    return {"parts": repr(BLOCKS[kind]), "starts": around}


def of_recipe(name: str, scale: str) -> dict[str, Any]:
    recipe = recipes.load(name, scale)
    plain_config = to_json(train.Config(task="digits"))
    return {"source": recipe.source, "config": beyond(to_json(recipe.config), plain_config)}


def beyond(config: dict[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a configuration that differ from the default one."""
    found = {}
    for name, value in config.items():
        usual = default.get(name)
        if isinstance(value, dict) and isinstance(usual, dict):
            value = beyond(value, usual)
            if value:
                found[name] = value
        elif value != usual:
            found[name] = value
    return found


def of_files(room: str) -> dict[str, dict[str, Any]]:
    """The numbers that have a name of their own, by file."""
    found: dict[str, dict[str, Any]] = {}
    folder = Path(linrnn.__file__).parent / room
    for path in sorted(folder.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else ()
            for target in targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                try:
                    value = ast.literal_eval(node.value)  # type: ignore[attr-defined]
                except ValueError:
                    continue
                name = ", ".join(n.id for n in names if isinstance(n, ast.Name))
                if name and _number(value):
                    found.setdefault(path.relative_to(folder).with_suffix("").as_posix(), {})[
                        name
                    ] = plain(value)
    return found


def _number(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return bool(value) and all(map(_number, value))
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def of_configs() -> dict[str, dict[str, Any]]:
    kinds = (train.ModelConfig, train.OptimConfig, train.TrainConfig)
    return {
        kind.__name__: {f.name: plain(getattr(kind(), f.name)) for f in dataclasses.fields(kind)}
        for kind in kinds
    }


def of_parts() -> dict[str, dict[str, Any]]:
    nn = importlib.import_module("linrnn.nn")
    found = {n: getattr(nn, n) for n in sorted(dir(nn)) if not n.startswith("_")}
    return {n: defaults(v) for n, v in found.items() if callable(v) and defaults(v)}


def of_entry_points() -> dict[str, dict[str, Any]]:
    found = {n: getattr(generation, n) for n in ("generate", "generate_batch", "generate_text")}
    named = {**found, "Sampling": generation.Sampling, "TokenStream": generation.TokenStream}
    named |= {"SequenceModel": SequenceModel, "RNN": RNN}
    named |= {"LearningSession": LearningSession, "LearningText": LearningText}
    return {n: defaults(v) for n, v in named.items()}


def table() -> dict[str, Any]:
    """All of it, as of this tree."""
    scales = [(name, scale) for name in recipes.names() for scale in recipes.scales(name)]
    return {
        "mixers": {name: of_mixer(name) for name in mixers.names()},
        "learners": {name: of_learner(name) for name in learn.names()},
        "blocks": {kind: of_block(kind) for kind in BLOCKS},
        "recipes": {f"{name}/{scale}": of_recipe(name, scale) for name, scale in scales},
        "parts": of_parts(),
        "entry points": of_entry_points(),
        "configurations": of_configs(),
        "numbers": {room: of_files(room) for room in ROOMS},
    }


def is_start(value: Any) -> bool:
    """Whether it is what `starts` says of a parameter."""
    return isinstance(value, list) and len(value) == 5 and isinstance(value[0], list)


def alike(written: list[Any], found: list[Any]) -> bool:
    """Whether two records agree; random orthogonal matrices depend on the LAPACK."""
    if written[0] != found[0]:
        return False
    (mean, std, low, high), (mean_2, std_2, low_2, high_2) = written[1:], found[1:]
    scale, reach = max(abs(low), abs(high)), high - low
    rounding = 2e-3 * scale + 1e-12
    return (
        abs(mean - mean_2) <= 0.1 * std + rounding
        and abs(std - std_2) <= 0.02 * std + 1e-3 * rounding + 1e-12
        and max(abs(low - low_2), abs(high - high_2)) <= 0.3 * reach + rounding
    )


def unmoved(written: Any, found: Any) -> Any:
    """The measured record, with written starts where both differ by rounding alone."""
    if isinstance(written, dict) and isinstance(found, dict):
        return {name: unmoved(written.get(name), value) for name, value in found.items()}
    return written if is_start(written) and is_start(found) and alike(written, found) else found


def text_of(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """The table as JSON, with a line for each entry, so that a change shows as its line."""
    parts = []
    for section, entries in sorted(sections.items()):
        lines = [
            f"  {json.dumps(n)}: {json.dumps(v, sort_keys=True)}"
            for n, v in sorted(entries.items())
        ]
        parts.append(f" {json.dumps(section)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    written = json.loads(TABLE.read_text(encoding="utf-8"))
    found = json.loads(json.dumps(table()))
    TABLE.write_text(text_of(unmoved(written, found)), encoding="utf-8")
