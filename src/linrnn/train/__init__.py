"""The loop around a model: configuration, run folder, checkpoints, plots.

Lightning does the loop; what is ours is what a recurrent model needs from it. What is more than a
plain record is imported when its name is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from linrnn.train._report import EpochReport as EpochReport
from linrnn.train._report import Plan as Plan
from linrnn.train._report import Reporter as Reporter
from linrnn.train._report import Result as Result
from linrnn.train._report import StepReport as StepReport

if TYPE_CHECKING:
    from linrnn.train._config import Config as Config
    from linrnn.train._config import ModelConfig as ModelConfig
    from linrnn.train._config import OptimConfig as OptimConfig
    from linrnn.train._config import TrainConfig as TrainConfig
    from linrnn.train._cycles import measure_cycles as measure_cycles
    from linrnn.train._cycles import write_cycles as write_cycles
    from linrnn.train._data import ContiguousBatches as ContiguousBatches
    from linrnn.train._distil import DistilledRun as DistilledRun
    from linrnn.train._distil import OrderFit as OrderFit
    from linrnn.train._distil import distill_run as distill_run
    from linrnn.train._evaluate import LengthScore as LengthScore
    from linrnn.train._evaluate import Score as Score
    from linrnn.train._evaluate import evaluate as evaluate
    from linrnn.train._evaluate import evaluate_lengths as evaluate_lengths
    from linrnn.train._lyapunov import LayerDynamics as LayerDynamics
    from linrnn.train._lyapunov import measure_dynamics as measure_dynamics
    from linrnn.train._lyapunov import write_dynamics as write_dynamics
    from linrnn.train._model import load_model as load_model
    from linrnn.train._module import TrainingModule as TrainingModule
    from linrnn.train._optim import lr_factor as lr_factor
    from linrnn.train._optim import param_groups as param_groups
    from linrnn.train._positions import PositionLoss as PositionLoss
    from linrnn.train._positions import loss_by_position as loss_by_position
    from linrnn.train._positions import write_positions as write_positions
    from linrnn.train._predict import Estimate as Estimate
    from linrnn.train._predict import Prediction as Prediction
    from linrnn.train._predict import predict as predict
    from linrnn.train._run import resume as resume
    from linrnn.train._run import run as run
    from linrnn.train._trained import TrainedModel as TrainedModel
    from linrnn.train._trained import TrainedStream as TrainedStream
    from linrnn.train._trained import load as load

_HEAVY = {
    "Config": "_config",
    "ContiguousBatches": "_data",
    "DistilledRun": "_distil",
    "OrderFit": "_distil",
    "distill_run": "_distil",
    "ModelConfig": "_config",
    "OptimConfig": "_config",
    "TrainConfig": "_config",
    "Estimate": "_predict",
    "LayerDynamics": "_lyapunov",
    "LengthScore": "_evaluate",
    "PositionLoss": "_positions",
    "Prediction": "_predict",
    "Score": "_evaluate",
    "TrainedModel": "_trained",
    "TrainedStream": "_trained",
    "TrainingModule": "_module",
    "evaluate": "_evaluate",
    "evaluate_lengths": "_evaluate",
    "load": "_trained",
    "load_model": "_model",
    "loss_by_position": "_positions",
    "lr_factor": "_optim",
    "measure_cycles": "_cycles",
    "measure_dynamics": "_lyapunov",
    "param_groups": "_optim",
    "predict": "_predict",
    "resume": "_run",
    "run": "_run",
    "write_cycles": "_cycles",
    "write_dynamics": "_lyapunov",
    "write_positions": "_positions",
}
__all__ = [
    "Config",
    "ContiguousBatches",
    "DistilledRun",
    "EpochReport",
    "Estimate",
    "LayerDynamics",
    "LengthScore",
    "ModelConfig",
    "OptimConfig",
    "OrderFit",
    "Plan",
    "PositionLoss",
    "Prediction",
    "Reporter",
    "Result",
    "Score",
    "StepReport",
    "TrainConfig",
    "TrainedModel",
    "TrainedStream",
    "TrainingModule",
    "distill_run",
    "evaluate",
    "evaluate_lengths",
    "load",
    "load_model",
    "loss_by_position",
    "lr_factor",
    "measure_dynamics",
    "param_groups",
    "predict",
    "resume",
    "run",
    "write_dynamics",
    "write_positions",
]


def __getattr__(name: str) -> Any:
    if name in _HEAVY:
        return getattr(importlib.import_module(f"{__name__}.{_HEAVY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
