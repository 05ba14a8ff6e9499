"""Rows as they are published lead to episodes that are graded by their tests."""

import json

import pytest

from cascade_jax.data.rows import parse_row
from cascade_jax.environment import ENVIRONMENTS
from cascade_jax.reward import VERIFIERS
from cascade_jax.types import Reply, Sample

from .test_swe import SUBMIT, bash, commit, git

WRONG = "def area(a, b):\n    return a + b\n"
RIGHT = "def area(a, b):\n    return a * b\n"
TESTS = """import pytest
from shapes import area

class TestArea:
    def test_square(self):
        assert area(3, 3) == 9

@pytest.mark.parametrize("name", ["of a room", "b"])
def test_names(name):
    assert area(2, 2) == 4
"""


@pytest.fixture(scope="module")
def clones(tmp_path_factory):
    """(a folder with the clone owner__shapes, the commit before the repair, the repair, its test patch, its patch)"""
    folder = tmp_path_factory.mktemp("clones")
    clone = folder / "owner__shapes"
    clone.mkdir()
    git(clone, "init", "-q", "-b", "main")
    before = commit(clone, "Shapes", shapes_py=WRONG)
    repair = commit(clone, "Areas are products", shapes_py=RIGHT, tests__test_shapes_py=TESTS)
    patches = [git(clone, "diff", before, repair, "--", part) + "\n" for part in ("tests", "shapes.py")]
    return folder, before, repair, *patches


def records(clones):
    _, before, repair, test_patch, patch = clones
    common = {"problem_statement": "The area of 3 by 3 is 6.", "instance_id": "owner__shapes-1"}
    instance = {**common, "repo": "owner/shapes", "base_commit": before, "test_patch": test_patch, "patch": patch}
    tests = {
        "FAIL_TO_PASS": ["tests/test_shapes.py::TestArea::test_square"],
        "PASS_TO_PASS": ["tests/test_shapes.py::test_names[of", "tests/test_shapes.py::test_names[b]"],
    }
    as_text = {name: json.dumps(value) for name, value in tests.items()}
    cascade = {"responses_create_params": {"input": "The area is wrong."}, "instance": {**instance, **as_text}}
    r2e = {
        "repo_name": "owner/shapes",
        "docker_image": "somewhere/shapes:1",
        "commit_hash": repair,
        "problem_statement": "[ISSUE] The area of 3 by 3 is 6. [/ISSUE]",
        "prompt": f"Write an issue for this commit:\n{patch}",
        "expected_output_json": json.dumps(
            {"TestArea.test_square": "PASSED", "test_names[b]": "PASSED", "x": "FAILED"}
        ),
        "parsed_commit_content": json.dumps({"old_commit_hash": before, "new_commit_hash": repair}),
        "execution_result_content": json.dumps({"test_file_names": ["test_1.py"], "test_file_codes": [TESTS]}),
    }
    without_commit = {name: value for name, value in r2e.items() if name != "parsed_commit_content"}
    return {"swe-gym": {**instance, **tests}, "cascade": cascade, "r2e": r2e, "r2e, parent": without_commit}


@pytest.mark.parametrize("source", ["swe-gym", "cascade", "r2e", "r2e, parent"])
def test_published_rows(play, clones, source):
    folder, *_ = clones
    row = parse_row(records(clones)[source], where=source)
    assert row.kind == "swe" and "a * b" not in json.dumps(row.messages)
    environment = ENVIRONMENTS["swe"](turns=4, repositories=str(folder))
    (right, shown), (wrong, _) = play(
        environment,
        row,
        [bash("ls tests r2e_tests; git log --oneline; sed -i 's/a + b/a * b/' shapes.py"), SUBMIT],
        [bash("sed -i 's/a + b/a * b + 1/' shapes.py"), SUBMIT],
    )
    assert (right.reward, wrong.reward) == (1.0, 0.0), (right, wrong)
    assert shown.count("cannot access") == 2 and "products" not in shown


def test_agentless_rows_over_a_repository(clones):
    folder, *_ = clones
    record = records(clones)["swe-gym"] | {"relevant_file_contents": json.dumps({"shapes.py": WRONG})}
    row = parse_row(record, where="row")
    assert row.kind == "swe_repair"
    verifier = VERIFIERS["swe_repair"](repositories=str(folder))
    for line, reward in (("a * b", 1.0), ("a * b * 2", 0.0)):
        block = f"<<<<<<< SEARCH\n    return a + b\n=======\n    return {line}\n>>>>>>> REPLACE"
        reply = Reply(f"```python\n### shapes.py\n{block}\n```")
        verdict = verifier.verify(row, Sample(None, None, None, "stop", 0, reply))
        assert (verdict.reward, verdict.no_verdict) == (reward, None)
