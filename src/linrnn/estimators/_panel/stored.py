"""A forecaster in a file of safetensors: numbers as tensors, the rest as JSON; no code."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linrnn.errors import ArgumentTypeError, RunFolderError, show
from linrnn.estimators._panel.bands import Bands
from linrnn.estimators._panel.batch import Batch
from linrnn.estimators._panel.calendar import Grid
from linrnn.estimators._panel.engine import Chosen
from linrnn.estimators._panel.following import Fit
from linrnn.estimators._panel.known import Columns
from linrnn.estimators._panel.long_form import Names, Panel
from linrnn.estimators._panel.totals import members
from linrnn.train.checkpoint import load_tensors, save_tensors

_WORD = "linrnn.PanelForecaster"
_VERSION = 2
_READ = ("1", "2")
"""Versions that `load` reads. In version 1 a file had the choices for its series alone."""


def save(path: Path, forecaster: Any) -> None:
    """Write all that was fitted and read.

    Raises:
        ArgumentTypeError: ids that are neither text nor numbers.
    """
    panel, fit = forecaster._panel, forecaster._fit
    chosen, columns, bands = fit.chosen, fit.columns, fit.chosen.bands
    arrays = {
        "y": panel.batch.y,
        "n": panel.batch.n,
        "powers": panel.powers,
        "ends": panel.ends,
        "scores": chosen.scores,
        "weights": chosen.weights,
        "size": bands.size,
        "growth": bands.growth,
        "pooled": bands.pooled,
        "static": columns.static,
        "places": forecaster._places,
    }
    arrays |= {f"other {k}": x for k, x in enumerate(panel.others.values())}
    options = forecaster.get_params(deep=False)
    options = {name: _plain(name, value) for name, value in options.items()}
    texts = {
        "options": options,
        "horizon": forecaster.horizon_,
        "season": forecaster.season_,
        "keys": [_plain("id", key) for key in fit.keys],
        "kinds": [str(fit.keys.get_level_values(k).dtype) for k in range(fit.keys.nlevels)],
        "grid": _of_grid(panel.grid),
        "fitted grid": _of_grid(fit.grid),
        "form": panel.form,
        "names": _of_names(panel.names),
        "fitted names": _of_names(fit.names),
        "parts": fit.n_parts,
        "others": list(panel.others),
        "known": list(columns.known),
        "past": list(columns.past),
        "contestants": list(chosen.names),
        "independent": bands.independent,
    }
    tensors: dict[str, Tensor] = {
        name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in arrays.items()
    }
    metadata = {"kind": _WORD, "version": str(_VERSION), "text": json.dumps(texts)}
    save_tensors(tensors, path, metadata)


def load(path: Path, cls: Any) -> Any:
    """A forecaster as it was.

    Raises:
        RunFolderError: the file is damaged, or holds something else.
    """
    tensors, metadata = load_tensors(path)
    if metadata.get("kind") != _WORD or metadata.get("version") not in _READ:
        raise RunFolderError(
            f"{path}: the file must hold a PanelForecaster of version {_READ[-1]}, got "
            f"{show(metadata.get('kind'))} of version {show(metadata.get('version'))}."
        )
    texts = json.loads(metadata["text"])
    arrays = {name: x.numpy() for name, x in tensors.items()}
    options = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in texts["options"].items()
    }
    forecaster = cls(**options)
    forecaster.horizon_, forecaster.season_ = texts["horizon"], texts["season"]
    bands = Bands(arrays["size"], arrays["growth"], arrays["pooled"], float(texts["independent"]))
    names = tuple(texts["contestants"])
    chosen = Chosen(names, arrays["scores"], arrays["weights"], bands)
    columns = Columns(tuple(texts["known"]), tuple(texts["past"]), arrays["static"])
    keys = _keys(texts)
    names_of_fit = _names(texts.get("fitted names", texts["names"]))
    grid = _grid(texts.get("fitted grid", texts["grid"]))
    n_parts = texts.get("parts")
    if n_parts is None:
        n_parts = members(keys).shape[1] if forecaster.totals else len(keys)
    forecaster._fit = Fit(keys, names_of_fit, grid, columns, chosen, n_parts)
    places = arrays.get("places", np.arange(len(keys)))
    forecaster._read(_panel(texts, arrays, keys[places]), places)
    return forecaster


def _panel(texts: Any, arrays: dict[str, np.ndarray], keys: Any) -> Panel:
    names = _names(texts["names"])
    return Panel(
        keys.set_names(list(names.id)),
        Batch(arrays["y"], arrays["n"]),
        arrays["powers"],
        arrays["ends"],
        _grid(texts["grid"]),
        texts["form"],
        names,
        {name: arrays[f"other {k}"] for k, name in enumerate(texts["others"])},
    )


def _keys(texts: Any) -> Any:
    import pandas as pd

    id = texts.get("fitted names", texts["names"])[0]
    columns = list(zip(*texts["keys"], strict=True)) if len(id) > 1 else [texts["keys"]]
    kinds = texts.get("kinds", [None] * len(id))
    levels = [
        pd.Index(list(column), dtype=kind, name=name)
        for column, kind, name in zip(columns, kinds, id, strict=True)
    ]
    return pd.MultiIndex.from_arrays(levels) if len(id) > 1 else levels[0]


def _of_names(names: Names) -> list[Any]:
    single = _plain("the name of a series", names.single)
    return [list(names.id), names.time, names.value, single]


def _names(texts: list[Any]) -> Names:
    id, time, value, single = texts
    return Names(tuple(id), time, value, single)


def _of_grid(grid: Grid) -> dict[str, Any]:
    if grid.kind == "numbers":
        return {"kind": grid.kind, "first": int(grid.first), "step": int(grid.step)}
    texts = {"kind": grid.kind, "first": str(grid.first), "step": grid.step.freqstr}
    if grid.kind == "periods":  # whose names of steps are not those of dates
        texts["step"] = grid.first.freqstr
    if grid.kind == "dates":
        zone = grid.first.tz
        texts |= {"unit": grid.first.unit, "zone": None if zone is None else str(zone)}
    return texts


def _grid(text: dict[str, Any]) -> Grid:
    import pandas as pd

    if text["kind"] == "numbers":
        return Grid("numbers", text["first"], text["step"])
    if text["kind"] == "periods":
        first = pd.Period(text["first"], freq=text["step"])
        return Grid("periods", first, first.freq)
    step = pd.tseries.frequencies.to_offset(text["step"])
    first = pd.Timestamp(text["first"]).as_unit(text["unit"])
    return Grid("dates", first if text["zone"] is None else first.tz_convert(text["zone"]), step)


def _plain(what: str, value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, (tuple, list)):
        return [_plain(what, one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise ArgumentTypeError(
        f"PanelForecaster.save: {what} must be text or a number, got {show(value)}."
    )
