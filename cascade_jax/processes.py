"""Several processes that train one model: how they find each other, agree, share host work, and part.

All of them run the same program on the same stream of prompts. Device work is one program over the mesh of all their
devices; host work that costs much is shared out and its results exchanged; files that tell of the run are written by
process 0. With one process every function here is the plain thing and nothing is started.
"""

import contextlib
import os
import pickle
import secrets
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from cascade_jax.config import ConfigError
from cascade_jax.peers import MISTAKE, LostPeer, Peers, ended_after

T = TypeVar("T")

HEARTBEAT_SECONDS = 30  # of JAX's own service; `Peers` sees a death at once
JOIN_SECONDS = 120  # for all to come
_PEERS: list[Peers] = []  # at most one, from `join` to `part`


def join(coordinator: str = "", processes: int = 0, process: int = -1) -> None:
    """Become one of several processes, before JAX is used: HOST:PORT where process 0 listens, how many, and which one.

    With nothing given, what SLURM, Kubernetes (JobSet) or a TPU VM say of the environment; a process that they start
    alone stays alone. ConfigError for a part of the three, or an environment that JAX cannot read; LostPeer where the
    others do not come.
    """
    given = (bool(coordinator), processes > 0, process >= 0)
    if any(given) and not (all(given) and process < processes):
        raise ConfigError(
            f"coordinator={coordinator!r}, processes={processes} and process={process} do not fit; give all three, "
            "HOST:PORT of process 0, how many processes there are, and the number of this one, from 0."
        )
    if not any(given) and not announced(os.environ):
        return
    # A peer's death must not end this process inside of JAX: `Peers` ends it, with a sentence and an exit code.
    jax.config.update("jax_enable_recoverability", True)
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM over
    found = (
        {"coordinator_address": coordinator, "num_processes": processes, "process_id": process} if any(given) else {}
    )
    if found:
        found["cluster_detection_method"] = "deactivate"
    try:
        with ended_after(JOIN_SECONDS, f"The processes did not find each other within {JOIN_SECONDS} s."):
            jax.distributed.initialize(
                **found, initialization_timeout=2 * JOIN_SECONDS, heartbeat_timeout_seconds=HEARTBEAT_SECONDS
            )
        if count() > 1:
            _PEERS.append(_watch(coordinator.rpartition(":")[0]))
    except ValueError as error:
        raise ConfigError(f"the environment tells of several processes, but JAX cannot tell which: {error}") from error
    except (RuntimeError, OSError) as error:  # jax.errors.JaxRuntimeError is a RuntimeError
        raise LostPeer(f"The processes did not find each other: {error}") from error


def announced(environment: Mapping[str, str]) -> bool:
    """Whether a launcher has started several processes, of which jax.distributed.initialize() knows the rest."""
    if environment.get("JAX_COORDINATOR_ADDRESS"):
        return True
    if all(name in environment for name in ("SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID")):
        return int(environment.get("SLURM_NTASKS", 1)) > 1
    hosts = environment.get("TPU_PROCESS_ADDRESSES") or environment.get("TPU_WORKER_HOSTNAMES", "")
    if "," in hosts or int(environment.get("MEGASCALE_NUM_SLICES") or 1) > 1:
        return True
    if "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment:
        return True
    # A TPU VM says it in Google's metadata, which JAX asks; the VM of a single host starts a service for itself alone.
    chips = any(Path(pattern).exists() for pattern in ("/dev/accel0", "/dev/vfio/0"))
    return chips and not hosts and environment.get("JAX_PLATFORMS", "tpu").startswith("tpu")


def count() -> int:
    return jax.process_count() if jax.distributed.is_initialized() else 1


def index() -> int:
    return jax.process_index() if jax.distributed.is_initialized() else 0


def is_first() -> bool:
    """Whether this process writes what tells of the run."""
    return index() == 0


def gather(value: Any) -> list[Any]:
    """Every process's value, in their order; anything that pickles. All processes must call it at the same place."""
    if count() == 1:
        return [value]
    given = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = multihost_utils.process_allgather(np.array([len(given)], np.int32)).ravel()
    room = 1 << int(sizes.max() - 1).bit_length()  # a power of two: each size is a compiled program
    everyone = multihost_utils.process_allgather(np.pad(given, (0, room - len(given))))
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(everyone, sizes, strict=True)]


def of_first(value: Callable[[], T]) -> T:
    """What process 0 finds, everywhere: files may look different from another host. What it raises is raised by all."""
    if count() == 1:
        return value()
    found: Any = None
    error: Exception | None = None
    if is_first():
        try:
            found = value()
        except Exception as raised:
            error = raised
    found, error = gather((found, error))[0]
    if error is not None:
        raise error
    return found


def any_of(flag: bool) -> bool:
    """Whether it is True for any process."""
    return flag if count() == 1 else bool(multihost_utils.process_allgather(np.array([flag])).any())


def barrier(name: str) -> None:
    """Returns once every process has come here."""
    if count() > 1:
        multihost_utils.sync_global_devices(name)


def shared(work: Callable[[Sequence[T]], list[Any]], items: Sequence[T]) -> list[Any]:
    """work(items), a result for each item, with the items dealt out to all processes."""
    if count() == 1:
        return work(items)
    parts = gather(work(items[index() :: count()]))
    return [parts[place % count()][place // count()] for place in range(len(items))]


def on_host(tree: Any) -> Any:
    """jax.device_get, also of arrays of which this process holds a part."""

    def whole(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            return multihost_utils.process_allgather(leaf, tiled=True)
        return leaf

    return jax.device_get(tree if count() == 1 else jax.tree.map(whole, tree))


@contextlib.contextmanager
def joined(
    coordinator: str, processes: int, process: int, *, mistakes: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """`join`, and an orderly end: what one of the `mistakes` ends here ends the other processes too, with exit code 2.

    An error of a collective whose peer has died does not come out of here: the process ends, with RESTART.
    """
    join(coordinator, processes, process)
    try:
        yield
    except mistakes:
        _part(MISTAKE)
        raise
    except Exception:
        if not _PEERS:
            raise
        _PEERS[0].settle()
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)  # the same: a death without a word is what the others can end after in an orderly way
    else:
        barrier("the end")
        if not is_first():
            jax.distributed.shutdown()
        _part(0)


def _part(code: int) -> None:
    while _PEERS:
        _PEERS.pop().close(code)


def _watch(host: str) -> Peers:
    """A connection to process 0 for all others: what the system closes when a process dies is seen at once."""
    if not host:  # found by JAX, which keeps it to itself
        from jax._src import distributed

        host = distributed.global_state.coordinator_address.rpartition(":")[0]
    token = of_first(lambda: secrets.token_bytes(16))
    listening = Peers.listen() if is_first() else None
    port = of_first(lambda: listening.getsockname()[1])
    return (
        Peers.accept(listening, token, count()) if is_first() else Peers.connect(host.strip("[]"), port, token, index())
    )
