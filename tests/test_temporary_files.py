"""The folder for temporary files of a session, which ends with it: see conftest.py."""

import tempfile
from pathlib import Path


def test_this_process_and_its_children_share_a_folder_of_the_session(python, tmp_path):
    folder = Path(tempfile.gettempdir())
    assert folder.name.startswith("linrnn-")
    assert python("import tempfile; result = tempfile.gettempdir()") == str(folder)
    assert folder not in tmp_path.parents  # which pytest keeps of the last sessions
