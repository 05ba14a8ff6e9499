"""Answers that another model judges: IMO-AnswerBench, IMO-ProofBench, Humanity's Last Exam, Arena-Hard v2."""

from collections.abc import Mapping
from typing import Any

from cascade_jax.types import Row
from evals.arena import ArenaGames
from evals.benchmarks.benchmark import UNSAID, Benchmark, K, SamplingConfig, file_rows, needed, of_kind, user_row

BOXED = "{question}\n\nPut the final answer into \\boxed{{}}."
PROOF = "{question}\n\nGive a complete and rigorous proof."
GRADINGS = 64  # of each proof; one 0 among them makes it 0

SUPERHUMAN = "of google-deepmind/superhuman on GitHub, folder imobench"
ANSWERS = f"answerbench.csv {SUPERHUMAN} (Problem ID, Problem, Short Answer, Category)"
PROOFS = f"proofbench.csv {SUPERHUMAN} (Problem ID, Problem, Solution, Grading guidelines, Level)"
EXAM = "the test split of cais/hle on Hugging Face, which asks for consent (id, question, answer, category, image)"
ARENA = (
    "question.jsonl of lmarena/arena-hard-auto, arena-hard-v2.0 (uid, category, prompt), with a column baseline: from "
    "its folder model_answer, what o3-mini-2025-01-31 (hard prompts) or gemini-2.0-flash-001 (creative writing) wrote"
)


def _answer(record: Mapping[str, Any], number: int) -> Row:
    question = record["Problem"]
    fields = {"question": question, "expected_answer": record["Short Answer"], "category": record["Category"]}
    return user_row(record["Problem ID"], "judged", BOXED.format(question=question), fields)


def _proof(record: Mapping[str, Any], number: int) -> Row:
    question = record["Problem"]
    marking = {"rubric": record["Grading guidelines"], "reference": record["Solution"], "level": record["Level"]}
    return user_row(record["Problem ID"], "proof", PROOF.format(question=question), {"question": question, **marking})


def _exam(record: Mapping[str, Any], number: int) -> Row | None:
    """The questions without an image."""
    if record.get("image"):
        return None
    question = record["question"]
    fields = {"question": question, "expected_answer": record["answer"], "category": record.get("category")}
    return user_row(f"hle-{record['id']}", "judged", BOXED.format(question=question), fields)


def _arena(record: Mapping[str, Any], number: int) -> Row:
    fields = {"reference": record["baseline"], "category": record["category"]}
    return user_row(f"arenahard-{record['uid']}", "preference", record["prompt"], fields)


BENCHMARKS = {
    "imo_answerbench": Benchmark(
        "IMO-AnswerBench, 400 problems",
        ANSWERS,
        lambda data: file_rows(data, "imo_answerbench", ANSWERS, _answer),
        of_kind("judged"),
        samples=16,
        sampling=SamplingConfig(temperature=1.0, top_p=1.0, max_tokens=256 * K),
        by="category",
        paper_judge="GPT-OSS-120B",
    ),
    "imo_proofbench": Benchmark(
        "IMO-ProofBench, 60 problems",
        PROOFS,
        lambda data: file_rows(data, "imo_proofbench", PROOFS, _proof),
        of_kind("proof", gradings=GRADINGS),
        sampling=SamplingConfig(temperature=1.0, top_p=0.95, max_tokens=256 * K),
        by="level",
        paper_judge="DeepSeek-V3.2-Speciale",
        note="one proof each; the paper's figure is of its test-time scaling",
    ),
    "hle": Benchmark(
        "Humanity's Last Exam, the 2,158 questions without images",
        EXAM,
        lambda data: file_rows(data, "hle", EXAM, _exam),
        of_kind("judged"),
        sampling=UNSAID,
        by="category",
        paper_judge="GPT-OSS-120B",
    ),
    "arenahard_v2": Benchmark(
        "Arena-Hard v2, 500 hard prompts and 250 of creative writing, win rate without style control",
        ARENA,
        lambda data: file_rows(data, "arenahard_v2", ARENA, _arena),
        lambda judge: ArenaGames(needed(judge).endpoint),
        sampling=SamplingConfig(temperature=0.6, top_p=0.95, max_tokens=32 * K),
        by="category",
        paper_judge="GPT-4.1",
        note="the paper's score is the mean of the two categories",
    ),
}
