"""All samples of a step at once, so that verifiers that wait for a process or a sandbox wait together."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Float

from cascade_jax.reward.verdict import Verdict, Verifier
from cascade_jax.types import Group


def verify_groups(
    verifiers: Mapping[str, Verifier], groups: Sequence[Group], *, threads: int = 16
) -> tuple[Float[np.ndarray, "P G"], list[list[Verdict]]]:
    """rewards_PG (float32, NaN where no verdict was had) and the verdicts. `verifiers`: row kind -> verifier.

    ValueError: a row's kind has no verifier, or the groups differ in size.
    """
    missing = sorted({group.prompt.row.kind for group in groups} - set(verifiers))
    if missing:
        raise ValueError(
            f"Rows of kind {', '.join(missing)} have no verifier; there is one for {', '.join(verifiers)}."
        )
    tasks = [(verifiers[g.prompt.row.kind], g.prompt.row, sample) for g in groups for sample in g.samples]
    with ThreadPoolExecutor(threads) as executor:
        flat = list(executor.map(lambda task: task[0].verify(task[1], task[2]), tasks))
    verdicts = split_like(groups, flat)
    return rewards_of(verdicts), verdicts


def split_like(groups: Sequence[Group], flat: Sequence[Verdict]) -> list[list[Verdict]]:
    """The verdicts of all samples in order, as one list per group."""
    rest = iter(flat)
    return [[next(rest) for _ in group.samples] for group in groups]


def rewards_of(verdicts: Sequence[Sequence[Verdict]]) -> Float[np.ndarray, "P G"]:
    """float32, NaN where no verdict was had. ValueError: groups of different sizes."""
    if len({len(group) for group in verdicts}) > 1:
        raise ValueError("The groups differ in size; draw the same number of samples for every prompt.")
    return np.array([[v.reward if v.no_verdict is None else np.nan for v in group] for group in verdicts], np.float32)
