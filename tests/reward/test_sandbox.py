"""What runs in a sandbox reaches nothing outside, uses no more than it may, and is gone afterwards."""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cascade_jax.reward.sandbox import Limits, Sandbox, SandboxBroken, backend, open_sandbox
from cascade_jax.reward.sandbox.backend import chosen

MIB = 1 << 20
LIMITS = Limits(seconds=3.0, memory=512 * MIB, processes=40, output=MIB, file_size=8 * MIB, disk=32 * MIB)


@pytest.fixture(scope="module")
def box(isolation: None) -> Iterator[Sandbox]:
    with open_sandbox(LIMITS) as box:
        yield box


@pytest.fixture
def python(box: Sandbox) -> Callable[..., str]:
    def run(source: str) -> str:
        """What a program printed; its errors too."""
        box.write("program.py", source.encode())
        done = box.run([chosen().python, "-I", "-S", "program.py"])
        return (done.stdout + done.stderr).decode()

    return run


def test_files_stay_between_runs_and_programs_get_their_input(box: Sandbox):
    box.write("folder/a.txt", b"one\n")
    done = box.run(["sh", "-c", "cat folder/a.txt -; pwd; echo $NAME; exit 3"], stdin=b"two\n", env={"NAME": "x"})
    assert (done.stdout, done.returncode) == (f"one\ntwo\n{box.folder}\nx\n".encode(), 3)
    assert (done.timed_out, done.out_of_memory, done.clipped) == (False, False, False)
    assert box.run(["sh", "-c", "echo more >> folder/a.txt"]).returncode == 0
    assert box.read("folder/a.txt") == b"one\nmore\n"
    assert box.run(["no-such-program"]).returncode == 127
    with pytest.raises(FileNotFoundError):
        box.read("absent")


def test_reading_follows_nothing_out_and_waits_for_nothing(box: Sandbox):
    box.run(["sh", "-c", "ln -s /etc/passwd link; mkfifo pipe; ln -s /dev/zero zero; mkdir dir"])
    for name in ("link", "pipe", "zero", "dir"):
        with pytest.raises(OSError):
            box.read(name)


def test_neither_files_nor_environment_of_the_parent(box: Sandbox, python: Callable, tmp_path: Path, monkeypatch):
    secret = secrets.token_hex(16)
    (tmp_path / "secret").write_text(secret)
    tmp_path.chmod(0o755)
    monkeypatch.setenv("SECRET", secret)
    said = python(
        f"""
import os
print(sorted(os.environ), sorted(os.listdir("/")))
paths = [{str(tmp_path / "secret")!r}, "/proc/1/environ", "/proc/self/environ", "/root", "/home", "/etc/shadow"]
paths += [f"/proc/{{pid}}/environ" for pid in ({os.getpid()}, os.getppid())]
paths += ["/proc/1/cwd{tmp_path}/secret", "/proc/self/root{tmp_path}/secret"]
for path in paths:
    try:
        print(path, os.listdir(path) if os.path.isdir(path) else open(path).read())
    except OSError as error:
        print(type(error).__name__)
"""
    )
    assert "PATH" in said and secret not in said and "SECRET" not in said
    assert not {"root", "home", "work", "var", "opt"} & set(said.split("\n")[0].partition("] ")[2].split("'"))


def test_no_network_not_even_loopback(python: Callable):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        said = python(
            f"""
import socket
for family, kind in ((socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM), (40, 1), (38, 5)):
    try:
        s = socket.socket(family, kind)
        s.connect(("127.0.0.1", {port}))
        s.send(b"x") and kind == socket.SOCK_STREAM and print("reached")
    except OSError as error:
        print(type(error).__name__)
try:
    socket.create_connection(("192.0.2.1", 80), timeout=0.5)
    print("reached")
except OSError:
    pass
"""
        )
        assert "reached" not in said and "Error" in said
        with pytest.raises(TimeoutError):
            server.accept()


def test_forking_without_end_stops_at_the_limit(python: Callable):
    said = python(
        """
import os, time
made = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
    except OSError:
        print(made)
        break
"""
    )
    assert 0 < int(said) <= LIMITS.processes


def test_memory_of_one_and_of_all_together(box: Sandbox, python: Callable):
    assert "MemoryError" in python(f"x = bytearray({LIMITS.memory})")
    fill = (
        f"import os, time\nfor _ in range(6): os.fork() or exec('x = bytearray({LIMITS.memory // 3}); time.sleep(60)')"
    )
    box.write("fill.py", (fill + "\ntime.sleep(60)").encode())
    done = box.run([chosen().python, "fill.py"], seconds=30)
    assert done.out_of_memory and done.seconds < 20


def test_disk_output_and_files(box: Sandbox, python: Callable):
    said = python(
        """
import os
written = 0
try:
    for i in range(100):
        with open(f"big{i}", "wb", 0) as file:
            for _ in range(7): written += file.write(bytes(1 << 20))
except OSError as error:
    print(written >> 20, error.errno)
for i in range(100):
    if os.path.exists(f"big{i}"): os.remove(f"big{i}")
try:
    open("bigger", "wb", 0).write(bytes(9 << 20)) == 9 << 20 or print("short")
except OSError as error:
    print(error.errno)
os.remove("bigger")
"""
    )
    mib, errno = map(int, said.split("\n")[0].split())
    assert mib <= LIMITS.disk / MIB and errno == 28  # no space left
    assert said.split("\n")[1] in ("short", "27")  # file too large
    done = box.run(["sh", "-c", "yes"])
    assert done.clipped and len(done.stdout) == LIMITS.output


@pytest.mark.parametrize(
    "program",
    [
        "trap '' TERM INT HUP; while true; do sleep 1; done",
        "(setsid sh -c 'sleep 60' &) ; sleep 60",
        "setsid nohup sleep 60 >/dev/null 2>&1 &",
        "kill -STOP $$",
    ],
)
def test_nothing_outlives_its_run(box: Sandbox, program: str):
    begun = time.monotonic()
    done = box.run(["sh", "-c", program], seconds=0.4)
    assert time.monotonic() - begun < 10 and (done.timed_out or done.seconds < 0.4)
    listed = box.run(["sh", "-c", "echo /proc/[0-9]*"]).stdout.split()
    assert len(listed) == 2  # the process that lives here, and the shell that lists


def test_the_resident_process_cannot_be_ended_from_inside(box: Sandbox, python: Callable):
    said = python(
        """
import os, resource
for number in (9, 15, 19, 11):
    os.kill(1, number)
for attempt in (lambda: resource.prlimit(1, resource.RLIMIT_CPU, (0, 0)), lambda: open("/proc/1/mem", "r+b").read(1)):
    try: attempt()
    except OSError as error: print("refused")
print(os.listdir("/proc/self/fd"))
"""
    )
    assert said.split("\n")[:3] == ["refused", "refused", "['0', '1', '2', '3']"]  # 3 is that of the listing
    assert box.run(["true"]).returncode == 0


def test_an_unprivileged_user_without_rights(box: Sandbox, python: Callable):
    said = python(
        "import os; print(os.getuid()); print(open('/proc/self/status').read(), open('/proc/self/uid_map').read())"
    )
    fields = dict(line.split(":\t", 1) for line in said.split("\n") if ":\t" in line)
    assert fields["CapEff"].strip("0") == "" and fields["NoNewPrivs"] == "1"
    assert said.split("\n")[0] != "0"
    refused = box.run(["unshare", "--user", "--map-root-user", "true"])
    assert refused.returncode != 0


def test_a_killed_sandbox_is_broken_and_closed(isolation: None):
    box = open_sandbox(LIMITS)
    threading.Timer(0.3, lambda: os.kill(box._process.pid, 9)).start()
    begun = time.monotonic()
    with pytest.raises(SandboxBroken, match="died"):
        box.run(["sleep", "30"], seconds=30)
    assert time.monotonic() - begun < 10
    with pytest.raises(SandboxBroken, match="closed"):
        box.run(["true"])


@pytest.mark.parametrize("kind", ["landlock", "unsafe"])
def test_the_other_backends(kind: str, tmp_path: Path, monkeypatch):
    found = next((b for b in backend._backends(allow_unsafe=True) if b.kind == kind), None)
    try:
        backend._try(found)
    except SandboxBroken as error:
        pytest.skip(
            f"needs {'sandlock and Linux 6.12' if kind == 'landlock' else 'a Python that all can read'}: {error}"
        )
    (tmp_path / "secret").write_text("x")
    with found.open(LIMITS) as box:
        done = box.run(
            ["sh", "-c", f"(setsid sleep 61.7 &); cat {tmp_path}/secret && echo read; sleep 60"], seconds=0.5
        )
        assert done.timed_out
        assert kind == "unsafe" or b"read" not in done.stdout
        assert box.load("print(input())").returncode == 0
        assert [ended.stdout for ended, _ in box.tests([(b"a", ()), (b"b", ())])] == [b"a\n", b"b\n"]
        if os.geteuid() == 0:
            assert int(box.run(["id", "-u"]).stdout) != 0
    assert not Path(box.folder).exists()
    assert not any(b"sleep\x0061.7" in line for line in command_lines())


def test_without_isolation_nothing_runs_unless_allowed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend, "_backends", lambda allow_unsafe: iter(()))
    backend._first_that_works.cache_clear()
    try:
        with pytest.raises(SandboxBroken, match="Install bubblewrap"):
            open_sandbox()
    finally:
        backend._first_that_works.cache_clear()


def test_limits_must_be_numbers_above_zero():
    with pytest.raises(ValueError, match="seconds=0"):
        Limits(seconds=0)


def command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:
            continue
