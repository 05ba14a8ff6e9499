"""Why a run should save and stop: SIGTERM, Ctrl-C, or Google Cloud announcing that it will take the machine away."""

import os
import signal
import sys
import threading
import urllib.request
from pathlib import Path
from types import FrameType

METADATA = "http://{host}/computeMetadata/v1/instance/{name}"
QUIET = {"maintenance-event": "NONE", "preempted": "FALSE"}  # what is there while nothing is announced
POLL = 1.0  # seconds; a preempted machine has 30


class StopOnSignal:
    """True once SIGTERM, Ctrl-C or a maintenance event came. A second Ctrl-C ends the process at once.

    `preempted` tells a machine's reasons from a person's: after those the run should be started again.
    """

    def __init__(self) -> None:
        self.asked = self.preempted = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        if host := metadata_host():
            threading.Thread(target=self._watch, args=(host,), name="maintenance", daemon=True).start()

    def __call__(self) -> bool:
        return self.asked

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._ask("Stopping after this step (Ctrl-C again: at once) ...", preempted=number == signal.SIGTERM)

    def _ask(self, sentence: str, *, preempted: bool) -> None:
        if not self.asked:
            print(f"\n{sentence}", file=sys.stderr, flush=True)
        self.asked, self.preempted = True, self.preempted or preempted

    def _watch(self, host: str) -> None:
        wait = threading.Event()
        while (event := announced(host)) is None:
            wait.wait(POLL)
        self._ask(f"Google Cloud announces {event}. Stopping after this step ...", preempted=True)


def metadata_host() -> str | None:
    """Where Google Cloud's metadata server is: GCE_METADATA_HOST, or its usual name on a machine of theirs."""
    if host := os.environ.get("GCE_METADATA_HOST"):
        return host
    product = Path("/sys/class/dmi/id/product_name")
    on_google = product.exists() and "Google Compute Engine" in product.read_text()
    return "metadata.google.internal" if on_google else None


def announced(host: str) -> str | None:
    """The first announcement found, e.g. "preempted TRUE"; None too where the server does not answer."""
    for name, quiet in QUIET.items():
        request = urllib.request.Request(METADATA.format(host=host, name=name), headers={"Metadata-Flavor": "Google"})
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as answer:
                value = answer.read().decode().strip()
        except (OSError, ValueError):  # busy, or not there: what is not announced does not stop a run
            continue
        if value and value != quiet:
            return f"{name} {value}"
    return None
