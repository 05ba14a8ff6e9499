"""Sandboxes by the dozen: work in the order it comes, a few at a time, on this machine or on a Ray cluster."""

import asyncio
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from cascade_jax.reward.sandbox.limits import SandboxBroken


class SandboxPool:
    """Runs functions that open sandboxes: `workers` at once, `queue` more wait, and whoever brings more is held back.

    address: of a Ray cluster ("auto", or host:port), whose nodes have this package installed; `workers` is then how
    many of its CPUs are taken. None: threads here, which drive processes of this machine. Callable from any threads.
    """

    def __init__(self, *, workers: int | None = None, queue: int = 1024, address: str | None = None):
        if (workers is not None and workers < 1) or queue < 0:
            raise ValueError(f"workers={workers} must be at least 1, or None, and queue={queue} at least 0.")
        # A sandbox waits for the kernel part of the time, so there are more of them than cores.
        self.workers, self.address = workers or 2 * len(os.sched_getaffinity(0)), address
        self._room = threading.BoundedSemaphore(self.workers + queue)
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """The result of work(*arguments), which is plain data as the arguments are. SandboxBroken: a worker died."""
        self._room.acquire()
        return self._start(work, arguments).result()

    async def run_async(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """The same without blocking the event loop."""
        while not self._room.acquire(blocking=False):
            await asyncio.sleep(0.005)
        return await asyncio.wrap_future(self._start(work, arguments))

    def close(self) -> None:
        """Wait for what is running; a later call starts anew."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()

    def _start(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> "Future[Any]":
        """Takes over one place of `_room`, which is free again when the work is done."""
        try:
            with self._lock:
                if self._executor is None:
                    self._executor = ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox")
                call = work if self.address is None else _on_cluster(self.address, work)
                future = self._executor.submit(call, *arguments)
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        return future


@functools.cache
def _on_cluster(address: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, done by a process of the cluster."""
    try:
        import ray
    except ImportError:
        raise ImportError("A pool with an address needs Ray; install it (pip install ray).") from None
    if not ray.is_initialized():
        ray.init(address=address, logging_level="warning", log_to_driver=False)
    remote = ray.remote(work).options(num_cpus=1, max_retries=0)

    def call(*arguments: Any) -> Any:
        try:
            return ray.get(remote.remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise SandboxBroken(f"a worker of the cluster has died: {type(error).__name__}") from None

    return call
