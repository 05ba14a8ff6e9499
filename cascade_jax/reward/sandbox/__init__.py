"""Sandboxes for code that a model wrote.

    with open_sandbox(Limits(seconds=2)) as box:
        box.write("a.py", b"print(input())")
        box.run(["python3", "a.py"], stdin=b"hello").stdout

Bubblewrap isolates where it works; this is tried once per process, and what was chosen is logged.
"""

from cascade_jax.reward.sandbox.backend import open_sandbox
from cascade_jax.reward.sandbox.box import Sandbox
from cascade_jax.reward.sandbox.limits import Finished, Limits, SandboxBroken

__all__ = ["Finished", "Limits", "Sandbox", "SandboxBroken", "open_sandbox"]
