"""Post-training of language models in JAX: SFT, a cascade of RL stages, and on-policy distillation.

Data travels one line:
data -> rollout -> reward | teacher -> advantage -> loss -> update -> checkpoint -> eval -> report.
Each station is one module or folder of this package; `types` holds what they hand to each other.
"""

__version__ = "0.1.0"
