"""One bug: where the code comes from, and by which tests a repair is graded. Rows of `swe` and `swe_repair`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cascade_jax.types import Row

_TOUCHED = re.compile(r"^(?:--- a/|\+\+\+ b/)([^\t\n]+)", re.MULTILINE)
_TEST_FOLDERS = frozenset(("test", "tests", "testing"))
# What decides how tests are found and run. The agent's edits to these count as little as those to tests.
_HARNESS = frozenset(
    (
        *("conftest.py", "sitecustomize.py", "usercustomize.py", "pyproject.toml", "setup.cfg", "tox.ini"),
        *("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"),
    )
)


class InstanceError(ValueError):
    """The row or the repository that it names cannot be used: no verdict on any answer to it."""


@dataclass(frozen=True)
class Instance:
    """A repository (a folder or a bundle) at `base`, or the `files` of one with the `history` before them.

    Tests are ids of pytest. `test_patch` and `test_files` bring them in, when the repair is graded and not before.
    """

    repository: Path | None
    base: str
    files: Mapping[str, str]
    history: tuple[Mapping[str, Any], ...]
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    test_patch: str = ""
    test_files: Mapping[str, str] = field(default_factory=dict)

    @property
    def tests(self) -> tuple[str, ...]:
        """All that must pass after the repair."""
        return (*self.fail_to_pass, *self.pass_to_pass)

    @property
    def test_paths(self) -> frozenset[str]:
        """The files that the tests bring along or change."""
        return frozenset(self.test_files) | patched_paths(self.test_patch)

    def counts(self, path: str) -> bool:
        """Whether a change of this file is part of a repair: not of tests, nor of what runs them."""
        *folders, name = path.split("/")
        return not (
            {"", "..", ".git"} & set(path.split("/"))
            or path in self.test_paths
            or any(known == path or known.startswith(f"{path}/") for known in self.test_paths)
            or _TEST_FOLDERS & set(folders)
            or name in _HARNESS
            or name.endswith((".pth", "_test.py", ".egg-link"))
            or (name.startswith("test_") and name.endswith(".py"))
            or any(folder.endswith((".egg-info", ".dist-info")) for folder in folders)
        )


def read_instance(row: Row, *, repositories: str = "") -> Instance:
    """The row's bug. `repositories`: a folder with OWNER__NAME or OWNER/NAME, as a folder, .git or .bundle.

    InstanceError: no code, or nothing to grade a repair by.
    """
    fields = row.fields
    found = Instance(
        repository=_repository(fields, repositories),
        base=fields.get("base_commit") or "HEAD",
        files=fields.get("files") or fields.get("relevant_file_contents") or {},
        history=tuple(fields.get("history") or ()),
        fail_to_pass=tuple(fields.get("FAIL_TO_PASS") or ()),
        pass_to_pass=tuple(fields.get("PASS_TO_PASS") or ()),
        test_patch=fields.get("test_patch") or "",
        test_files=fields.get("test_files") or {},
    )
    if found.repository is None and not found.files:
        named = fields.get("repo") or "none"
        raise InstanceError(
            f"the row holds no code and its repository ({named}) is not at hand; put a clone or a bundle of it "
            f"into the folder `repositories`, as {str(named).replace('/', '__')}"
        )
    if not found.tests:
        raise InstanceError("FAIL_TO_PASS and PASS_TO_PASS are empty, so no test tells whether a repair is right")
    return found


def patched_paths(patch: str) -> frozenset[str]:
    """The files that a unified diff of git touches."""
    return frozenset(path.rstrip() for path in _TOUCHED.findall(patch))


def _repository(fields: Mapping[str, Any], repositories: str) -> Path | None:
    given = fields.get("repository")
    if given:
        path = Path(given)
        if not path.exists():
            raise InstanceError(f"there is no repository {path}; give the path of a git folder or of a bundle")
        return path
    name = fields.get("repo")
    if not repositories or not name:
        return None
    stems = (name.replace("/", "__"), name)
    places = [Path(repositories) / f"{stem}{ending}" for stem in stems for ending in ("", ".git", ".bundle")]
    return next((place for place in places if place.exists()), None)
