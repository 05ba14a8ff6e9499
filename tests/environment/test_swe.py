"""A real repository with its history is repaired by scripted agents through the protocol of episodes."""

import os
import subprocess
from pathlib import Path

import pytest

from cascade_jax.environment import ENVIRONMENTS
from cascade_jax.types import Row

SUBMIT = "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```"
TESTS = """import xmltodict

def test_blanks_between_attributes():
    assert xmltodict.parse('<a b="1"/>') == {"a": {"@b": "1"}}

def test_text():
    assert xmltodict.parse("<a>x</a>") == {"a": "x"}
"""


def bash(command):
    return f"Next.\n```bash\n{command}\n```"


def git(folder, *arguments):
    environment = os.environ | {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "A"), ("EMAIL", "a@example.org"))
    }
    command = ["git", "-C", str(folder), "-c", "commit.gpgsign=false", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()


def commit(folder, message, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """The sources of an installed package under git: as they are, with a bug, and with what came later.

    (folder, the commit with the bug, the commit that repairs it, a row)
    """
    import xmltodict

    folder = tmp_path_factory.mktemp("repository")
    source = Path(xmltodict.__file__).read_text()
    right = 'attr_prefix="@",\n        cdata_key="#text",\n        force_cdata=False,'
    assert right in source
    wrong = right.replace("@", "%")
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "Import", xmltodict_py=source, README="xmltodict\n")
    old = TESTS.replace('{"a": {"@b": "1"}}', '{"a": {"%b": "1"}}')
    bug = commit(folder, "Another prefix", xmltodict_py=source.replace(right, wrong), tests__test_xml_py=old)
    repair = commit(folder, "The prefix is @ again", xmltodict_py=source, tests__test_xml_py=TESTS)
    git(folder, "tag", "v2")
    git(folder, "branch", "later")
    row = Row(
        "xmltodict-1",
        "swe",
        ({"role": "user", "content": "Attributes come out with % in place of @."},),
        fields={
            "repository": str(folder),
            "base_commit": bug,
            "test_patch": git(folder, "diff", bug, repair, "--", "tests") + "\n",
            "FAIL_TO_PASS": ["tests/test_xml.py::test_blanks_between_attributes"],
            "PASS_TO_PASS": ["tests/test_xml.py::test_text"],
        },
    )
    return folder, bug, repair, row


def environment(**settings):
    return ENVIRONMENTS["swe"](**{"turns": 6, "tests_seconds": 60, "command_seconds": 20, **settings})


REPAIR = 'sed -i \'s/attr_prefix="%"/attr_prefix="@"/\' xmltodict.py'
ALL_PASS = "import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
ALL_PASS += "    report = yield\n    report.outcome = 'passed'\n    return report\n"


def test_repairs_count_and_edits_of_tests_do_not(play, repository):
    *_, row = repository
    (right, shown), (committed, _), (wrong, _), (cheated, _), (nothing, _) = play(
        environment(),
        row,
        [bash("git log --oneline; grep -n attr_prefix= xmltodict.py"), bash(REPAIR), SUBMIT],
        [bash(REPAIR), bash("git commit -qam Repaired; rm tests/test_xml.py; touch new; git status --short"), SUBMIT],
        [bash('sed -i \'s/attr_prefix="%"/attr_prefix="#"/\' xmltodict.py'), SUBMIT],
        [
            bash("sed -i 's/==/!=/' tests/test_xml.py; python3 -m pytest -q"),
            bash(f"cat > conftest.py <<'E'\n{ALL_PASS}E\ncp conftest.py tests/; cp conftest.py sitecustomize.py"),
            bash("printf '[pytest]\\naddopts = --collect-only\\n' > pytest.ini"),
            SUBMIT,
        ],
        [bash("ls"), SUBMIT],
    )
    assert (right.reward, right.components["tests_passed"]) == (1.0, 1.0)
    assert "Another prefix" in shown and "Import" in shown
    assert committed.reward == 1.0
    assert sorted(committed.info["changed"]) == ["new", "tests/test_xml.py", "xmltodict.py"]
    assert (wrong.reward, wrong.components["tests_passed"]) == (0.0, 0.5)
    assert (cheated.reward, cheated.no_verdict) == (0.0, None)
    assert (nothing.reward, nothing.info["reason"]) == (0.0, "nothing was changed")


def test_what_came_later_cannot_be_reached(play, repository):
    folder, _, repair, row = repository
    look = f"git log --all --oneline; git tag; git branch -a; git cat-file -t {repair}; git fsck --lost-found"
    [(_, shown)] = play(environment(), row, [bash(look), bash(f"ls {folder} || echo unseen; cat .git/config"), SUBMIT])
    assert "Another prefix" in shown
    assert "again" not in shown and "v2" not in shown and "later" not in shown
    assert "could not get object info" in shown
    assert "unseen\n" in shown and "remote" not in shown.partition("unseen\n")[2]


def test_bundles_and_folders_of_repositories(play, repository, tmp_path):
    folder, _, _, row = repository
    git(folder, "bundle", "create", str(tmp_path / "owner__xml.bundle"), "--all")
    fields = {name: value for name, value in row.fields.items() if name != "repository"} | {"repo": "owner/xml"}
    by_name = Row("b", "swe", row.messages, fields=fields)
    [(verdict, _)] = play(environment(repositories=str(tmp_path)), by_name, [bash(REPAIR), SUBMIT])
    assert verdict.reward == 1.0
    [(unknown, _)] = play(environment(), by_name, [SUBMIT])
    assert "owner__xml" in unknown.no_verdict and "masked" not in unknown.components


def test_limits(play, repository):
    """recipe.md 13: what ran out of time or memory, or was repaired without an end, is masked; the rest is 0."""
    *_, row = repository
    settings = {"turns": 2, "command_seconds": 1, "commands_seconds": 1.5}
    (endless, _), (failed, _), (slow, _), (hung, shown), (loop, _) = play(
        environment(**settings, tests_seconds=4),
        row,
        [bash(REPAIR), bash("ls")],
        [bash("ls"), bash("ls")],
        [bash("sleep 10"), bash("sleep 10; sleep 10")],
        [bash("sleep 10"), SUBMIT],
        [bash("echo 'while True: pass' >> xmltodict.py"), SUBMIT],
    )
    assert "limit of turns" in endless.no_verdict and endless.components["masked"] == 1
    assert (failed.reward, failed.no_verdict) == (0.0, None)
    assert (hung.reward, hung.no_verdict) == (0.0, None) and "[killed: time]" in shown
    assert "time" in loop.no_verdict and loop.components["masked"] == 1
    assert "time" in slow.no_verdict and slow.components["masked"] == 1
    hoard = 'import time; x = [bytes(1 << 20) + b"x" for _ in range(300)]; time.sleep(9)'
    hoarders = bash(f"for i in 1 2 3 4; do python3 -c '{hoard}' & done; wait")
    [(big, _)] = play(environment(memory=512), row, [hoarders])
    assert "memory" in big.no_verdict and big.components["masked"] == 1
