"""How far back a loss reaches while a system of the atlas learns to copy.

Trains systems on copying as `linrnn atlas` does, seed 0, and measures the gradient of the loss with
respect to the first inputs and to the last, as the norm over channels and the mean over a batch.
Prints and writes ``benchmarks/results/atlas-reach-cpu.md``.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from _report import RESULTS, command_line, conditions, section, table, write_lines
from linrnn import SequenceModel, atlas
from linrnn.atlas._train import train
from linrnn.tasks import Task

CASES = {"gru": (128, 0.01), "lstm": (32, 0.01), "tanh_rnn": (32, 0.01), "lru": (128, 0.003)}
"""Silent steps and learning rate of each system; the rates are those of the map."""
TOKENS = 4


def reach(model: SequenceModel, task: Task, batch: Sequence[Tensor]) -> tuple[float, float]:
    """Norms of the gradient with respect to the first inputs and to the last ones."""
    embedded: list[Tensor] = []

    def keep(module: torch.nn.Module, arguments: object, output: Tensor) -> None:
        output.retain_grad()
        embedded.append(output)

    hook = model.encoder.register_forward_hook(keep)
    try:
        task.loss(model(batch[0])[0], batch[1]).backward()
    finally:
        hook.remove()
    (x,) = embedded
    norms = x.grad.norm(dim=-1).mean(0)  # (time,)
    model.zero_grad()
    return float(norms[:TOKENS].mean()), float(norms[-TOKENS:].mean())


def main() -> int:
    """Train each system, and write the table."""
    torch.set_num_threads(1)
    copying = next(ability for ability in atlas.ABILITIES if ability.name == "copying")
    lines = []
    for name, (silence, rate) in CASES.items():
        measured: dict[int, tuple[float, float]] = {}

        def watch(
            step: int,
            model: SequenceModel,
            task: Task,
            batch: Sequence[Tensor],
            into: dict[int, tuple[float, float]] = measured,
        ) -> None:
            if step % 50 == 0 and step <= 150:
                into[step] = reach(model, task, batch)

        system = atlas.sized(name)
        done = train(system, copying, silence, rate=rate, seed=0, extrapolate=False, watch=watch)
        ratios = [f"{first / last:.0e}" for first, last in measured.values()]
        cells = [name, str(silence), *ratios, *[""] * (4 - len(ratios)), f"{done.fraction:.2f}"]
        lines.append(cells)
        print(*cells, flush=True)
    heads = ["system", "silent steps", "at the start", "50 updates", "100 updates", "150 updates"]
    page = [
        "# Reach of a gradient while copying is learned",
        "",
        *conditions(command_line(), ["torch"]),
        "- gradient of the loss with respect to the first four inputs over that to the last four; "
        "and the part of the way from chance to perfect that 600 updates come to",
        "",
        *section("reach", table([*heads, "way"], lines)),
    ]
    write_lines(RESULTS / "atlas-reach-cpu.md", page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
