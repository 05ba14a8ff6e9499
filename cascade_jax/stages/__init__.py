"""The three kinds of stage: run(stage, state, context) -> state."""

from cascade_jax.stages import distill, rl, sft

STAGES = {"sft": sft.run, "rl": rl.run, "distill": distill.run}
