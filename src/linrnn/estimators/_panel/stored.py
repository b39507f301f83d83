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
from linrnn.estimators._panel.known import Columns
from linrnn.estimators._panel.long_form import Names, Panel
from linrnn.train.checkpoint import load_tensors, save_tensors

_WORD = "linrnn.PanelForecaster"
_VERSION = 1


def save(path: Path, forecaster: Any) -> None:
    """Write all that was fitted and read.

    Raises:
        ArgumentTypeError: ids that are neither text nor numbers.
    """
    panel, chosen = forecaster._panel, forecaster._chosen
    bands, columns = chosen.bands, forecaster._columns
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
    }
    arrays |= {f"other {k}": x for k, x in enumerate(panel.others.values())}
    options = forecaster.get_params(deep=False)
    options = {name: _plain(name, value) for name, value in options.items()}
    texts = {
        "options": options,
        "horizon": forecaster.horizon_,
        "season": forecaster.season_,
        "keys": [_plain("id", key) for key in panel.keys],
        "grid": _of_grid(panel.grid),
        "form": panel.form,
        "names": [
            list(panel.names.id),
            panel.names.time,
            panel.names.value,
            _plain("the name of a series", panel.names.single),
        ],
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
    if metadata.get("kind") != _WORD or metadata.get("version") != str(_VERSION):
        raise RunFolderError(
            f"{path}: the file must hold a PanelForecaster of version {_VERSION}, got "
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
    forecaster._chosen = Chosen(names, arrays["scores"], arrays["weights"], bands)
    known, past = tuple(texts["known"]), tuple(texts["past"])
    forecaster._columns = Columns(known, past, arrays["static"])
    forecaster._panel = _panel(texts, arrays)
    return forecaster


def _panel(texts: Any, arrays: dict[str, np.ndarray]) -> Panel:
    import pandas as pd

    id, time, value, single = texts["names"]
    several = len(id) > 1
    if several:
        keys: Any = pd.MultiIndex.from_tuples([tuple(key) for key in texts["keys"]], names=id)
    else:
        keys = pd.Index(texts["keys"], name=id[0])
    return Panel(
        keys,
        Batch(arrays["y"], arrays["n"]),
        arrays["powers"],
        arrays["ends"],
        _grid(texts["grid"]),
        texts["form"],
        Names(tuple(id), time, value, single),
        {name: arrays[f"other {k}"] for k, name in enumerate(texts["others"])},
    )


def _of_grid(grid: Grid) -> dict[str, Any]:
    if grid.kind == "numbers":
        return {"kind": grid.kind, "first": int(grid.first), "step": int(grid.step)}
    texts = {"kind": grid.kind, "first": str(grid.first), "step": grid.step.freqstr}
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
