"""Long prompts: needles of RULER, AA-LCR. LongBench v2 is among the choices."""

from collections.abc import Sequence

from cascade_jax.types import Row
from evals.benchmarks.benchmark import UNSAID, Benchmark, K, SamplingConfig, of_kind
from evals.benchmarks.data import Data
from evals.long_context import AA_LCR, ESSAYS, Ruler, aa_lcr, essays


def _needles(data: Data, tokens: int) -> Sequence[Row]:
    """Made to the length that the checkpoint's tokenizer counts, and hidden in essays."""
    prose = essays(data.shipped(*ESSAYS))
    if data.encode is None:
        raise ValueError("needles are hidden in a number of tokens, which takes the tokenizer of a checkpoint.")
    return Ruler(data.encode, tokens=tokens, prose=prose)


def _niah(tokens: int, *, note: str) -> Benchmark:
    return Benchmark(
        f"RULER, four kinds of needles, 100 of each, in {tokens:,} tokens",
        f"made, and hidden in the essays of the package {ESSAYS[0]}",
        lambda data: _needles(data, tokens),
        of_kind("long_context"),
        sampling=SamplingConfig(temperature=1.0, top_p=0.95, max_tokens=128),
        thinking=False,
        by="task",
        note=note,
    )


BENCHMARKS = {
    "niah_1m": _niah(K * K, note="temperature and top-p are not in the paper; 128 tokens are RULER's"),
    "niah_128k": _niah(128 * K, note="not in the paper"),
    "niah_4k": _niah(4 * K, note="not in the paper"),
    "aa_lcr": Benchmark(
        "AA-LCR, 100 questions on about 100,000 tokens each",
        f"the package {AA_LCR[0]}",
        lambda data: aa_lcr(data.shipped(*AA_LCR)),
        of_kind("judged"),
        samples=16,
        sampling=UNSAID,
        paper_judge="that of AA-LCR",
        note="sampling: not in the paper",
    ),
}
