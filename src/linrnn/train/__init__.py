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
from linrnn.train._report import Silent as Silent
from linrnn.train._report import StepReport as StepReport

if TYPE_CHECKING:
    from linrnn.train._cycles import measure_cycles as measure_cycles
    from linrnn.train._cycles import write_cycles as write_cycles
    from linrnn.train._lyapunov import LayerDynamics as LayerDynamics
    from linrnn.train._lyapunov import measure_dynamics as measure_dynamics
    from linrnn.train._lyapunov import write_dynamics as write_dynamics
    from linrnn.train._module import TrainingModule as TrainingModule
    from linrnn.train._predict import Estimate as Estimate
    from linrnn.train._predict import Prediction as Prediction
    from linrnn.train._predict import predict as predict
    from linrnn.train._run import resume as resume
    from linrnn.train._run import run as run
    from linrnn.train._trained import TrainedModel as TrainedModel
    from linrnn.train._trained import TrainedStream as TrainedStream
    from linrnn.train._trained import load as load
    from linrnn.train.config import Config as Config
    from linrnn.train.config import ModelConfig as ModelConfig
    from linrnn.train.config import OptimConfig as OptimConfig
    from linrnn.train.config import TrainConfig as TrainConfig
    from linrnn.train.data import ContiguousBatches as ContiguousBatches
    from linrnn.train.distil import DistilledRun as DistilledRun
    from linrnn.train.distil import OrderFit as OrderFit
    from linrnn.train.distil import distill_run as distill_run
    from linrnn.train.evaluation import LengthScore as LengthScore
    from linrnn.train.evaluation import Score as Score
    from linrnn.train.evaluation import evaluate as evaluate
    from linrnn.train.evaluation import evaluate_lengths as evaluate_lengths
    from linrnn.train.model import load_model as load_model
    from linrnn.train.optim import lr_factor as lr_factor
    from linrnn.train.optim import param_groups as param_groups
    from linrnn.train.positions import PositionLoss as PositionLoss
    from linrnn.train.positions import loss_by_position as loss_by_position
    from linrnn.train.positions import write_positions as write_positions

_HEAVY = {
    "Config": "config",
    "ContiguousBatches": "data",
    "DistilledRun": "distil",
    "OrderFit": "distil",
    "distill_run": "distil",
    "ModelConfig": "config",
    "OptimConfig": "config",
    "TrainConfig": "config",
    "Estimate": "_predict",
    "LayerDynamics": "_lyapunov",
    "LengthScore": "evaluation",
    "PositionLoss": "positions",
    "Prediction": "_predict",
    "Score": "evaluation",
    "TrainedModel": "_trained",
    "TrainedStream": "_trained",
    "TrainingModule": "_module",
    "evaluate": "evaluation",
    "evaluate_lengths": "evaluation",
    "load": "_trained",
    "load_model": "model",
    "loss_by_position": "positions",
    "lr_factor": "optim",
    "measure_cycles": "_cycles",
    "measure_dynamics": "_lyapunov",
    "param_groups": "optim",
    "predict": "_predict",
    "resume": "_run",
    "run": "_run",
    "write_cycles": "_cycles",
    "write_dynamics": "_lyapunov",
    "write_positions": "positions",
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
    "Silent",
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
    "measure_cycles",
    "measure_dynamics",
    "param_groups",
    "predict",
    "resume",
    "run",
    "write_cycles",
    "write_dynamics",
    "write_positions",
]


def __getattr__(name: str) -> Any:
    if name in _HEAVY:
        return getattr(importlib.import_module(f"{__name__}.{_HEAVY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
