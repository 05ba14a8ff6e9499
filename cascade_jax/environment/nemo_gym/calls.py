"""The chain of tokens of a rollout that an agent of someone else's ran, from the model calls that it reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cascade_jax.environment.nemo_gym.responses import turns
from cascade_jax.types import Segment


@dataclass(frozen=True)
class Call:
    """One call of the model: prompt (m,) int32, ids (n,) int32, logprobs (n,) float32."""

    prompt: np.ndarray
    ids: np.ndarray
    logprobs: np.ndarray


@dataclass(frozen=True)
class Rebuilt:
    """`segments` in order; `calls`: model calls of the rollout; `delivered`: those whose tokens are in the segments."""

    segments: tuple[Segment, ...]
    calls: int
    delivered: int


def calls_of(output: Sequence[Mapping[str, Any]]) -> list[Call | str]:
    """The calls that the output items of a Response report, in order; in place of one, why it cannot be used.

    The last item of a call carries `prompt_token_ids`, `generation_token_ids` and `generation_log_probs`. A turn of the
    assistant's may have been several calls; one without any such item is one call without tokens.
    """
    calls: list[Call | str] = []
    for turn in turns(output):
        reported = [item for item in turn if "generation_token_ids" in item]
        calls += [_call(item) for item in reported] or ["it carries no token ids"]
    return calls


def rebuild(calls: Sequence[Call | str]) -> Rebuilt:
    """Chains the calls: each continues the longest chain so far whose every token its prompt begins with.

    A call whose prompt begins with no chain (a rewritten or shortened history, another sub-agent) starts a segment of
    its own, so what is trained is always what the model saw. Calls without tokens are in none.
    """
    chains: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = []
    prompts: list[np.ndarray] = []
    wholes: list[np.ndarray] = []
    known = [call for call in calls if isinstance(call, Call)]
    for call in known:
        fitting = [i for i, whole in enumerate(wholes) if _begins(call.prompt, whole)]
        if fitting:
            i = max(fitting, key=lambda i: len(wholes[i]))
            read = call.prompt[len(wholes[i]) :]
            chains[i].append((read, np.zeros(len(read), np.float32), np.zeros(len(read), bool)))
        else:
            i = len(chains)
            chains.append([])
            prompts.append(call.prompt)
            wholes.append(call.prompt)
        chains[i].append((call.ids, call.logprobs, np.ones(len(call.ids), bool)))
        wholes[i] = np.concatenate([call.prompt, call.ids])
    segments = [
        Segment(prompt, *(np.concatenate(parts) for parts in zip(*chain, strict=True)))
        for prompt, chain in zip(prompts, chains, strict=True)
    ]
    return Rebuilt(tuple(segments), len(calls), len(known))


def _call(item: Mapping[str, Any]) -> Call | str:
    given = [item.get(name) for name in ("prompt_token_ids", "generation_token_ids", "generation_log_probs")]
    if not all(isinstance(values, list) for values in given):
        return "its token ids or log-probs are no lists"
    prompt, ids, logprobs = given
    if not all(type(i) is int and 0 <= i < 2**31 for i in (*prompt, *ids)) or not prompt or not ids:
        return "its token ids are no ids"
    if len(ids) != len(logprobs):
        return f"it has {len(ids)} tokens and {len(logprobs)} log-probs"
    # Engines write -9999 where they have no log-prob.
    if not all(isinstance(p, (int, float)) and -9000 < p <= 1e-3 for p in logprobs):
        return "some of its log-probs are none"
    return Call(np.array(prompt, np.int32), np.array(ids, np.int32), np.array(logprobs, np.float32))


def _begins(ids: np.ndarray, start: np.ndarray) -> bool:
    return len(ids) >= len(start) and np.array_equal(ids[: len(start)], start)
