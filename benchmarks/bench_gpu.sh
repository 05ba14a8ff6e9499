#!/usr/bin/env bash
# Checks and times every kernel on the GPU that is here, in less than eight minutes, beside cuBLAS (dense products of the
# same FLOPs), cuDNN, lax.ragged_dot and, where PyTorch is installed, torch._grouped_mm.
#
#   benchmarks/bench_gpu.sh [FOLDER]      writes bench_gpu_OPERATION.json and .md there (default: benchmarks/results)
#
# Needs: pip install -e '.[cuda]'. Values come first: a way that disagrees with ours ends the run.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-benchmarks/results}
python=${PYTHON:-python3}
mkdir -p "$folder"
export XLA_PYTHON_CLIENT_PREALLOCATE=false JAX_PLATFORMS=cuda

"$python" -c 'import jax; print(jax.__version__, jax.devices())'
nvidia-smi --query-gpu=name,clocks.sm,memory.used --format=csv || true

# The flagship first: should the time run out, its table is there.
for operation in grouped_matmul attention token_logprob ssd; do
  timeout 110 "$python" -m pallas_kernels.bench --operations="$operation" --repeats=20 --seconds=8 \
    --json="$folder/bench_gpu_$operation.json" --markdown="$folder/bench_gpu_$operation.md" ||
    echo "$operation: ended with $? (124: its 110 seconds were up)"
done
cat "$folder"/bench_gpu_*.md
