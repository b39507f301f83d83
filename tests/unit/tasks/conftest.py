"""Where the tests find real data, and tiny files in its place."""

import os
from pathlib import Path

import pytest
from made_data import write_all


@pytest.fixture(scope="session")
def shared_data(pytestconfig):
    """The folder of real sample data; a test that needs it is skipped where there is none.

    It is LINRNN_SHARED_DATA, or ../shared/data beside the repository.
    """
    place = os.environ.get("LINRNN_SHARED_DATA", pytestconfig.rootpath.parent / "shared" / "data")
    if not Path(place).is_dir():
        pytest.skip(f"no sample data: {place} is no folder; set LINRNN_SHARED_DATA")
    return Path(place)


@pytest.fixture(scope="session")
def made_data(tmp_path_factory):
    """A folder with a tiny file of every kind a task reads."""
    root = tmp_path_factory.mktemp("data")
    write_all(root)
    return root


@pytest.fixture
def use_made_data(made_data, monkeypatch):
    """Let every task find its data in `made_data`."""
    monkeypatch.setenv("LINRNN_DATA", str(made_data))
