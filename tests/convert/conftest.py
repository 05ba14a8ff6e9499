"""Folders that transformers wrote, once for all tests of a process."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """written(name): the folder of the network of that name in reference.NETS. To be read only."""
    from tests.convert import reference

    root = tmp_path_factory.mktemp("written")
    return functools.cache(lambda name: reference.write(name, root / name))
