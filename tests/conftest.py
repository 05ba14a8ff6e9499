"""Read before any test module: the CPU, no network, and little noise."""

import os

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Nets of tests run for milliseconds and compile for seconds: half as long without LLVM's optimisations.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that two workers end together."""
    items.sort(key=lambda item: "runs" not in item.path.parts)


@pytest.fixture(scope="session")
def isolation() -> None:
    """Skips where this machine has no sandbox that isolates."""
    from cascade_jax.reward.sandbox import SandboxBroken
    from cascade_jax.reward.sandbox.backend import chosen

    try:
        chosen()
    except SandboxBroken as error:
        pytest.skip(f"needs a sandbox: {error}")
