"""linrnn: sequence models on PyTorch whose recurrence can be solved in parallel.

Where to begin:

    RNN("mingru", 32, 64)           in place of torch.nn.GRU or LSTM: the same arguments and results
    SequenceModel(3, 10)            a whole model: encoder, layers with norms and skips, head
    mixers.LRU(64)                  one layer, (batch, time, channels) in and out, and its state;
                                    `mixers.names()` lists all of them
    fit(model, loader, loss=...)    train a model on batches of your own
    RecurrentClassifier().fit(X, y) arrays in, classes out, as in scikit-learn; also Regressor,
                                    Forecaster, Detector, Imputer
    load(run)                       a model that ``linrnn train`` made
    streaming.Session(model)        an endless sequence, step by step
    generation.generate_text        text of a language model
    ops.linear_scan, cells.cell     a recurrence alone; an equation of your own

On the command line ``linrnn --help`` lists the verbs, and ``linrnn show lru`` explains a layer.

Importing this package is cheap: PyTorch itself is imported when the first name that needs it
is used (``linrnn.ops``, ``linrnn.mixers``, ``linrnn.SequenceModel``, ...).
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linrnn import atlas as atlas
    from linrnn import block as block
    from linrnn import cells as cells
    from linrnn import compare as compare
    from linrnn import contest as contest
    from linrnn import distillation as distillation
    from linrnn import dynamics as dynamics
    from linrnn import estimators as estimators
    from linrnn import generation as generation
    from linrnn import interop as interop
    from linrnn import learn as learn
    from linrnn import lightning as lightning
    from linrnn import mixers as mixers
    from linrnn import ops as ops
    from linrnn import quantization as quantization
    from linrnn import recipes as recipes
    from linrnn import reproductions as reproductions
    from linrnn import serve as serve
    from linrnn import sound as sound
    from linrnn import state_spec as state_spec
    from linrnn import streaming as streaming
    from linrnn import tasks as tasks
    from linrnn import testing as testing
    from linrnn import tokenizers as tokenizers
    from linrnn import train as train
    from linrnn._process.allocator import keep_memory as keep_memory
    from linrnn.backbone import SequenceModel as SequenceModel
    from linrnn.distillation import distill as distill
    from linrnn.estimators import PanelForecaster as PanelForecaster
    from linrnn.estimators import RecurrentClassifier as RecurrentClassifier
    from linrnn.estimators import RecurrentDetector as RecurrentDetector
    from linrnn.estimators import RecurrentForecaster as RecurrentForecaster
    from linrnn.estimators import RecurrentImputer as RecurrentImputer
    from linrnn.estimators import RecurrentRegressor as RecurrentRegressor
    from linrnn.estimators.panel_run import load as load
    from linrnn.lightning import fit as fit
    from linrnn.quantization import quantize as quantize
    from linrnn.rnn import RNN as RNN
    from linrnn.rnn import last_output as last_output

__version__ = "0.1.0"

_SUBMODULES = (
    "atlas",
    "backbone",
    "block",
    "cells",
    "compare",
    "contest",
    "distillation",
    "dynamics",
    "errors",
    "estimators",
    "generation",
    "interop",
    "learn",
    "lightning",
    "mixers",
    "nn",
    "ops",
    "quantization",
    "recipes",
    "reproductions",
    "rnn",
    "serve",
    "sound",
    "state",
    "state_spec",
    "streaming",
    "tasks",
    "testing",
    "tokenizers",
    "train",
)
_ATTRIBUTES = {
    "PanelForecaster": "linrnn.estimators",
    "RNN": "linrnn.rnn",
    "RecurrentClassifier": "linrnn.estimators",
    "RecurrentDetector": "linrnn.estimators",
    "RecurrentForecaster": "linrnn.estimators",
    "RecurrentImputer": "linrnn.estimators",
    "RecurrentRegressor": "linrnn.estimators",
    "SequenceModel": "linrnn.backbone",
    "distill": "linrnn.distillation",
    "fit": "linrnn.lightning",
    "keep_memory": "linrnn._process.allocator",
    "last_output": "linrnn.rnn",
    "load": "linrnn.estimators.panel_run",
    "quantize": "linrnn.quantization",
}
_PLACES = {
    "GRU": "RNN('gru', ...)",
    "LSTM": "RNN('lstm', ...)",
    "Mixer": "mixers.Mixer",
    "OptimConfig": "train.OptimConfig",
    "Session": "streaming.Session",
    "accelerate": "interop.accelerate",
    "cell": "cells.cell",
    "cell_scan": "ops.cell_scan",
    "check_mixer": "testing.check_mixer",
    "explain": "ops.explain",
    "export_step": "interop.onnx.export_step",
    "generate": "generation.generate",
    "linear_scan": "ops.linear_scan",
    "param_groups": "train.param_groups",
}
"""Where names are that are looked for in the package itself."""
__all__ = sorted(["__version__", *_ATTRIBUTES, *_SUBMODULES])


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"linrnn.{name}")
    if name in _ATTRIBUTES:
        return getattr(importlib.import_module(_ATTRIBUTES[name]), name)
    raise _no_attribute(name)


def _no_attribute(name: str) -> AttributeError:
    """The error of a name that is not here, with the place where it is."""
    from linrnn.errors import no_attribute

    places = {one: f"linrnn.{one}" for one in __all__}
    if not name.startswith("_"):
        from linrnn._options.catalogue import class_names

        places |= {one: f"linrnn.mixers.{one}" for one in class_names("linrnn.mixers")}
        places |= {one: f"linrnn.{place}" for one, place in _PLACES.items()}
    return no_attribute("linrnn", name, places)


def __dir__() -> list[str]:
    return sorted(__all__)


if os.environ.get("LINRNN_ACCELERATE", "0") not in ("", "0"):
    from linrnn.interop import accelerate

    accelerate()
