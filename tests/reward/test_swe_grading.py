"""Grading of repairs by tests: a right repair passes, a wrong one does not, and none can answer for the tests."""

import subprocess
import sys

import pytest

from cascade_jax.reward.swe.grading import Room, grade
from cascade_jax.reward.swe.history import snapshot
from cascade_jax.reward.swe.instance import Instance, InstanceError, read_instance

WRONG = "def add(a, b):\n    return a - b\n"
RIGHT = "def add(a, b):\n    return a + b\n"
TESTS = """from calc import add

def test_add():
    assert add(1, 2) == 3

def test_zero():
    assert add(0, 0) == 0
"""
FIELDS = {
    "files": {"calc.py": WRONG, "setup.cfg": "[metadata]\nname = calc\n"},
    "history": [{"message": "Start", "files": {"README": "calc\n"}}],
    "test_files": {"tests/test_calc.py": TESTS},
    "FAIL_TO_PASS": ["tests/test_calc.py::test_add"],
    "PASS_TO_PASS": ["tests/test_calc.py::test_zero"],
}
ROOM = Room()


def graded(row, changes, seconds=60, **fields):
    instance = read_instance(row("swe", **{**FIELDS, **fields}))
    data = {path: None if text is None else text.encode() for path, text in changes.items()}
    return grade(instance, data, ROOM, seconds=seconds)


def test_the_repair_passes_and_the_code_as_it_was_does_not(row):
    assert graded(row, {"calc.py": RIGHT}).resolved
    as_it_was = graded(row, {})
    assert not as_it_was.resolved
    assert (as_it_was.passed, as_it_was.asked, as_it_was.failed) == (1, 2, ("tests/test_calc.py::test_add",))


def test_what_worked_before_must_still_work(row):
    assert graded(row, {"calc.py": "def add(a, b):\n    return 3\n"}).failed == ("tests/test_calc.py::test_zero",)


@pytest.mark.parametrize("path", ["calc.py", "tests/test_calc.py"])
def test_a_file_that_is_gone(row, path):
    """Without the code the tests fail; the tests themselves come back."""
    assert graded(row, {"calc.py": RIGHT, path: None}).resolved == (path != "calc.py")


# What one file of a wrong answer may hold to make the tests seem to pass.
PASS_ALL = "import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
PASS_ALL += "    report = yield\n    report.outcome = 'passed'\n    return report\n"
SETUP = {
    "tests/test_calc.py": "def test_add(): pass\ndef test_zero(): pass\n",
    "conftest.py": PASS_ALL,
    "tests/conftest.py": PASS_ALL,
    "sitecustomize.py": "import atexit, os\natexit.register(os._exit, 0)\n",
    "usercustomize.py": "raise SystemExit(0)\n",
    "pytest.ini": "[pytest]\naddopts = -p evil\n",
    "setup.cfg": "[tool:pytest]\naddopts = --collect-only -p evil\n",
    "tox.ini": "[pytest]\npython_functions = nothing\n",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-p evil'\n",
    "evil.egg-info/entry_points.txt": "[pytest11]\nevil = evil\n",
    "evil.dist-info/entry_points.txt": "[pytest11]\nevil = evil\n",
    "evil.pth": "import evil\n",
}


def test_the_agents_tests_and_their_setup_do_not_count(row):
    """All at once; and none of them is in the way of a right repair."""
    assert graded(row, SETUP | {"evil.py": PASS_ALL}).failed == ("tests/test_calc.py::test_add",)
    assert graded(row, SETUP | {"evil.py": PASS_ALL, "calc.py": RIGHT}).resolved


def test_a_file_in_place_of_the_folder_of_the_tests(row):
    assert graded(row, {"tests": "text\n", "calc.py": RIGHT}).resolved


FORGED = '{"outcomes": {"tests/test_calc.py::test_add": "passed", "tests/test_calc.py::test_zero": "passed"}'
FORGED += ', "canaries": {}, "tampered": []}'
# Looks for a local variable up the stack, while the module is imported.
FRAMES = """import sys
def found(name):
    frame = sys._getframe()
    while frame is not None and name not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals[name]
"""
TRICKS = {
    "leaves without an error": "import sys\nsys.exit(0)\n",
    "leaves at once": "import os\nos._exit(0)\n",
    "raises SystemExit in the call": "def add(a, b):\n    raise SystemExit(0)\n",
    "prints a report": f"import os, sys\nfor n in range(1, 20):\n    try:\n        os.write(n, b'''\\n{FORGED}\\n''')\n"
    "    except OSError:\n        pass\nos._exit(0)\n",
    "prints markers": "print('PASSED tests/test_calc.py::test_add')\nprint('2 passed in 0.01s')\n" + WRONG,
    "skips": "import pytest\ndef add(a, b):\n    pytest.skip('later')\n",
    "skips the module": "import pytest\npytest.skip('later', allow_module_level=True)\n",
    "expects a failure": "import pytest\ndef add(a, b):\n    pytest.xfail('known')\n",
    "runs no test": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n" + WRONG,
    "runs no test on the call": "import _pytest.python\ndef add(a, b):\n"
    "    _pytest.python.Function.runtest = lambda self: None\n    return 0\n",
    "wraps calls": """import _pytest.runner as r
old = r.CallInfo.from_call.__func__
def new(cls, func, when, reraise=None):
    return old(cls, lambda: None, when, reraise)
r.CallInfo.from_call = classmethod(new)
"""
    + WRONG,
    "rewrites reports": "import _pytest.reports as r\nold = r.TestReport.from_item_and_call.__func__\n"
    "def new(cls, item, call):\n    made = old(cls, item, call)\n    made.outcome = 'passed'\n    return made\n"
    "r.TestReport.from_item_and_call = classmethod(new)\n" + WRONG,
    "registers a plugin": FRAMES
    + """class Evil:
    def pytest_pyfunc_call(self, pyfuncitem):
        return True
found('config').pluginmanager.register(Evil())
"""
    + WRONG,
    "changes the recorder": FRAMES
    + """def log(self, report):
    report.outcome = 'passed'
    self._write({'test': report.nodeid, 'outcome': 'passed'})
type(found('plugins')[0]).pytest_runtest_logreport = log
"""
    + WRONG,
    "changes what is written": FRAMES
    + """recorder = found('plugins')[0]
write = recorder._write
recorder._write = lambda line: write({**line, 'outcome': 'passed'} if 'test' in line else line)
"""
    + WRONG,
    "writes more": FRAMES
    + """write = found('write')
def add(a, b):
    for phase in range(3):
        write({'test': 'tests/test_calc.py::test_add', 'outcome': 'passed'})
    write({'tampered': []})
    import os
    os._exit(0)
""",
    "hunts": "import gc\n[o for o in gc.get_objects() if type(o).__name__ == 'Recorder']\n" + RIGHT,
    "replaces builtins": "import builtins\nbuiltins.AssertionError = type('E', (Exception,), {})\n"
    "builtins.all = lambda x: True\nbuiltins.len = lambda x: 0\n" + WRONG,
    "shadows pytest": "import sys, types\nsys.modules['pytest'] = types.ModuleType('pytest')\n" + WRONG,
    "rewrites the tests on disk": "import pathlib\np = pathlib.Path(__file__).parent / 'tests' / 'test_calc.py'\n"
    "p.write_text('def test_add(): pass\\ndef test_zero(): pass\\n')\n" + WRONG,
    "hangs": "while True:\n    pass\n",
    "kills its parent": "import os\nos.kill(os.getppid(), 9)\nos.kill(os.getpid(), 9)\n",
    "fills the memory": "x = []\nwhile True:\n    x.append(bytearray(1 << 26))\n",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_no_module_answers_for_its_tests(row, trick):
    grade = graded(row, {"calc.py": TRICKS[trick]}, seconds=2 if trick == "hangs" else 60)
    assert not grade.resolved
    assert grade.timed_out == (trick == "hangs")


def test_modules_named_like_the_tools_are_harmless(row):
    shadows = {f"{name}.py": "raise SystemExit(0)\n" for name in ("pytest", "_pytest", "pluggy", "json", "unittest")}
    assert graded(row, shadows | {"calc.py": RIGHT}).resolved
    assert not graded(row, shadows).resolved


def test_tests_that_are_rewritten_before_they_are_collected(row):
    """The first test file imports the code, which rewrites the second, and puts it back when that has been read."""
    second = TESTS.replace("test_add", "test_sum")
    fake = "import calc\ndef test_sum(): pass\ndef test_zero(): pass\ncalc.back()\n"
    trick = "import pathlib\np = pathlib.Path(__file__).parent / 'tests' / 'test_two.py'\nold = p.read_text()\n"
    trick += f"p.write_text({fake!r})\ndef back():\n    p.write_text(old)\n" + WRONG
    files = {"tests/test_one.py": "import calc\n", "tests/test_two.py": second}
    wanted = {"test_files": files, "FAIL_TO_PASS": ["tests/test_two.py::test_sum", "tests/test_one.py::test_none"]}
    wanted["PASS_TO_PASS"] = []
    files["tests/test_one.py"] += "def test_none(): pass\n"
    assert "changes its tests" in graded(row, {"calc.py": trick}, **wanted).reason
    assert graded(row, {"calc.py": RIGHT}, **wanted).resolved


def test_a_pack_holds_the_commit_and_nothing_later(tmp_path):
    def git(*arguments, **more):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
        return subprocess.run(command, check=True, capture_output=True, **more).stdout

    git("init", "-q", "-b", "main")
    commits = []
    for text in ("one", "two", "three"):
        (tmp_path / "file").write_text(text)
        git("add", "file")
        git("commit", "-q", "-m", text)
        commits.append(git("rev-parse", "HEAD").decode().strip())
    found = snapshot(Instance(tmp_path, "main^", {}, (), (), ()))
    assert found.commit == commits[1]
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "other")], check=True)
    git("--git-dir", str(tmp_path / "other"), "unpack-objects", "-q", input=found.pack)
    listed = git("--git-dir", str(tmp_path / "other"), "cat-file", "--batch-all-objects", "--batch-check").decode()
    assert all(commit in listed for commit in commits[:2]) and commits[2] not in listed
    assert listed.count("blob") == 2
    for base in ("nowhere", "-h", "main^^^"):
        with pytest.raises(InstanceError):
            snapshot(Instance(tmp_path, base, {}, (), (), ()))


def test_equal_files_make_the_same_commit_in_every_process():
    made = 'Instance(None, "HEAD", {"a é.py": "x\\n"}, ({"message": "m", "files": {"b": "y"}},), (), ())'
    script = (
        "from cascade_jax.reward.swe.history import snapshot\n"
        f"from cascade_jax.reward.swe.instance import Instance\nprint(snapshot({made}).commit)"
    )
    other = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.strip()
    assert snapshot(eval(made)).commit == other and len(other) == 40


def test_repositories_that_cannot_be_graded(row):
    with pytest.raises(InstanceError, match="part of pytest"):
        graded(row, {}, files={"src/pluggy/__init__.py": ""})
    with pytest.raises(InstanceError, match="does not apply"):
        graded(row, {}, test_patch="--- a/none.py\n+++ b/none.py\n@@ -1 +1 @@\n-a\n+b\n")
    with pytest.raises(InstanceError, match="owner__name"):
        read_instance(row("swe", repo="owner/name", FAIL_TO_PASS=["t.py::t"]))
