"""Counts of what the service does, as the text that Prometheus reads."""

import threading
from collections.abc import Callable, Mapping

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters, gauges that are read when somebody looks, and one histogram of seconds.

    Example:
        >>> metrics = Metrics()
        >>> metrics.count("linrnn_steps_total", 3, model="a")
        >>> print(metrics.text(), end="")
        # TYPE linrnn_steps_total counter
        linrnn_steps_total{model="a"} 3
    """

    def __init__(self) -> None:
        self._counts: dict[str, dict[Labels, float]] = {}
        self._gauges: dict[str, dict[Labels, Callable[[], float]]] = {}
        self._seconds: dict[Labels, list[float]] = {}
        self._lock = threading.Lock()

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            of_name = self._counts.setdefault(name, {})
            key = tuple(sorted(labels.items()))
            of_name[key] = of_name.get(key, 0) + by

    def gauge(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Show what a function returns."""
        self._gauges.setdefault(name, {})[tuple(sorted(labels.items()))] = read

    def took(self, seconds: float, **labels: str) -> None:
        """Count a request that took some seconds."""
        with self._lock:
            key = tuple(sorted(labels.items()))
            cells = self._seconds.setdefault(key, [0.0] * (len(_BOUNDS) + 2))
            for i, bound in enumerate(_BOUNDS):
                cells[i] += seconds <= bound
            cells[-2] += 1
            cells[-1] += seconds

    def text(self) -> str:
        """All of them in the text format of Prometheus."""
        with self._lock:
            lines = [line for name in self._counts for line in self._counter(name)]
            lines += self._histogram("linrnn_request_seconds")
        for name, gauges in self._gauges.items():
            read = {labels: value() for labels, value in gauges.items()}
            lines += [f"# TYPE {name} gauge", *_lines(name, read)]
        return "".join(f"{line}\n" for line in lines)

    def _counter(self, name: str) -> list[str]:
        return [f"# TYPE {name} counter", *_lines(name, self._counts[name])]

    def _histogram(self, name: str) -> list[str]:
        lines = [f"# TYPE {name} histogram"] if self._seconds else []
        for labels, cells in self._seconds.items():
            for bound, n in zip((*_BOUNDS, "+Inf"), cells, strict=False):
                lines += _lines(f"{name}_bucket", {(*labels, ("le", str(bound))): n})
            lines += _lines(f"{name}_count", {labels: cells[-2]})
            lines += _lines(f"{name}_sum", {labels: cells[-1]})
        return lines


def _lines(name: str, values: Mapping[Labels, float]) -> list[str]:
    lines = []
    for labels, value in values.items():
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
        lines.append(f"{name}{{{pairs}}} {value:.10g}" if pairs else f"{name} {value:.10g}")
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
