"""linrnn doctor."""

import importlib.metadata

import pytest
import torch

import linrnn
from linrnn.cli import doctor
from linrnn.compute import native
from linrnn.ops import backend_report
from linrnn.ops.linear.linear_scan import _tree as _scan_tree


def test_doctor_reports_on_this_machine(capsys):
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    for heading in ("versions", "machine", "backends", "native kernels", "extras", "self-test"):
        assert f"\n{heading}" in f"\n{out}"
    assert linrnn.__version__ in out
    assert torch.__version__ in out
    assert f"{torch.get_num_threads()} (torch.get_num_threads)" in out


def test_backends_are_those_of_the_report():
    assert doctor.backends() == backend_report()


def test_cells_are_reported_beside_the_other_ops():
    rows = doctor.ops()
    assert "linear_scan" in rows
    assert "tree, reference" in rows["cell_scan"]
    assert "triton" in rows["cell_scan"]


def test_self_test_covers_every_available_backend():
    available = [name for name, state in backend_report().items() if state == "available"]
    results = doctor.self_test()
    assert list(results) == available
    assert all(result.endswith("  ok") for result in results.values())


@pytest.mark.parametrize("function", ["forward", "backward"])
def test_a_backend_with_wrong_numbers_fails(monkeypatch, capsys, function):
    right = getattr(_scan_tree, function)

    def wrong(*args):
        first, *rest = right(*args)
        return (first * (1 + 1e-4), *rest)

    monkeypatch.setattr(_scan_tree, function, wrong)
    assert doctor.main([]) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["tree", "1.0e-04", "WRONG"] in [row[:3] for row in rows]
    assert ["reference", "ok"] in [[row[0], row[-1]] for row in rows if row]


def test_self_test_asks_only_for_backends_that_are_available(monkeypatch):
    monkeypatch.setattr("linrnn.ops.backend_report", lambda: {"cpu": "no", "tree": "available"})
    assert list(doctor.self_test()) == ["tree"]


def test_missing_kernels_are_reported_with_the_reason(monkeypatch):
    monkeypatch.setattr(native, "load", lambda: (None, "no compiler"))
    assert doctor.native_kernels() == {"missing": "no compiler"}


def test_extras_name_what_is_missing_and_how_to_get_it(monkeypatch):
    requirements = ["torch>=2.6", "nonesuch>=1; extra == 'train'", 'pytest; extra == "dev"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requirements)
    assert doctor.extras() == {
        "train": "missing nonesuch; in a clone: pip install -c constraints.txt '.[train]'; once "
        "published: pip install 'linrnn[train]'",
        "dev": "installed",
    }


def test_extras_of_a_package_that_was_not_installed(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert "not installed by pip" in doctor.extras()["unknown"]
