"""Accuracies that state spaces and long convolutions print for all of Long Range Arena."""

from linrnn.tasks._kinds.base import Published

_MODELS = (
    ("DSS, softmax", "public code of Gupta, Gu and Berant 2022, arXiv:2203.14343, its table"),
    ("Liquid-S4", "Hasani et al. 2022, arXiv:2209.12951"),
    ("SGConv", "Li et al. 2022, arXiv:2210.09298"),
    ("Mega", "Ma et al. 2022, arXiv:2209.10655"),
)


def long_range(
    *, dss: float, liquid_s4: float, sgconv: float, mega: float, suffix: str = ""
) -> tuple[Published, ...]:
    """The published accuracies of these models, as a task lists them.

    Args:
        dss, liquid_s4, sgconv, mega: accuracies.
        suffix: behind the names.

    Example:
        >>> long_range(dss=0.5, liquid_s4=0.6, sgconv=0.7, mega=0.8)[2].value
        0.7
    """
    values = (dss, liquid_s4, sgconv, mega)
    return tuple(
        Published(model=f"{model}{suffix}", value=value, source=source)
        for (model, source), value in zip(_MODELS, values, strict=True)
    )
