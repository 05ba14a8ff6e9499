"""Verdicts on samples. One file per verifier; preferences, which are relative within a group, are in `preference`."""

from collections.abc import Callable

from cascade_jax.reward.batch import verify_groups
from cascade_jax.reward.code import Code
from cascade_jax.reward.competitive import Competitive
from cascade_jax.reward.instruction import InstructionFollowing
from cascade_jax.reward.judged import JudgedAnswer
from cascade_jax.reward.long_context import LongContext
from cascade_jax.reward.math import MathAnswer
from cascade_jax.reward.mcqa import MultipleChoice
from cascade_jax.reward.proof import ProofGrade
from cascade_jax.reward.structured_output import StructuredOutput
from cascade_jax.reward.swe.repair import AgentlessRepair
from cascade_jax.reward.tool_call import ToolCalls
from cascade_jax.reward.verdict import Verdict, Verifier

# Row kind -> constructor; a domain's settings are its keyword arguments.
VERIFIERS: dict[str, Callable[..., Verifier]] = {
    "instruction_following": InstructionFollowing,
    "mcqa": MultipleChoice,
    "tool_call": ToolCalls,
    "structured_output": StructuredOutput,
    "math": MathAnswer,
    "long_context": LongContext,
    "judged": JudgedAnswer,
    "proof": ProofGrade,
    "code": Code,
    "competitive": Competitive,
    "swe_repair": AgentlessRepair,
}

__all__ = ["VERIFIERS", "Verdict", "Verifier", "verify_groups"]
