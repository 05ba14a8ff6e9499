#!/usr/bin/env bash
# Runs a cascade on TPU VMs, one slice or several, and again on new ones after a preemption.
set -euo pipefail

usage() {
  cat <<'TEXT'
Runs a cascade on TPU VMs: asks for a slice (a queued resource), waits for it, copies this checkout there, installs it,
and runs it on all hosts. From the root of the repository:

    launch/tpu_pod.sh --name=cascade --zone=us-east5-a --topology=v5p:4x4x4 \
        --config=configs/nemotron_cascade2_30b.py --workdir=/shared/runs/cascade [--config.X=VALUE ...] [--dry_run]

--name=NAME         of the queued resource and of its nodes
--zone=ZONE         where there are TPUs of that kind; --project=PROJECT: another than gcloud's own
--topology=NAME     v5p:4x4x4, v6e:16x16, v5e:8x8, or 2xv5p:4x4x4 for two slices
--config=FILE.py    as for launch.run; --config.X.Y=VALUE overrides a setting
--workdir=FOLDER    as for launch.run; all hosts must see it, as they must see data and checkpoint
--spot              cheaper VMs that may be taken away at any time
--runtime=VERSION   of the VMs' software, instead of the usual one for that kind
--dry_run           print what this machine and what every host would run; start nothing

The same command goes on with a slice that is there, and with a run that was stopped. When VMs are taken away, or the run
asks to be started again (exit code 75), it starts again by itself while this script runs: leave it in tmux, on a machine
that stays up. Nothing is deleted at the end; the slice costs money until you delete it with the command that is printed.
TEXT
}

fail() {
  echo "error: $1; see --help." >&2
  exit 2
}

name="" zone="" project="" machine="" config="" workdir="" runtime="" spot="" dry_run="" overrides=()
for argument in "$@"; do
  value="${argument#*=}"
  case "$argument" in
    -h | --help) usage && exit 0 ;;
    --dry_run) dry_run=yes ;;
    --spot) spot=yes ;;
    --name=*) name="$value" ;;
    --zone=*) zone="$value" ;;
    --project=*) project="$value" ;;
    --topology=*) machine="$value" ;;
    --config=*) config="$value" ;;
    --workdir=*) workdir="$value" ;;
    --runtime=*) runtime="$value" ;;
    --config.*=*) overrides+=("$argument") ;;
    *) fail "'$argument' is no argument; write --NAME=VALUE" ;;
  esac
done
for required in name zone topology config workdir; do
  given="$required"
  [ "$required" != topology ] || given=machine
  [ -n "${!given}" ] || fail "--$required is missing"
done
[[ "$name" =~ ^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$ ]] ||
  fail "--name='$name' is no name; take up to 40 small letters, digits and dashes, a letter first and no dash last"
[ -f launch/run.py ] || fail "$PWD is not the root of the repository; run launch/tpu_pod.sh from there"
[ -f "${config%%:*}" ] || fail "there is no config file '${config%%:*}'"
facts="$(python3 -m launch.topology "$machine")" || exit 2
read -r kind slices hosts chips _ gcp_type usual_runtime <<<"$facts"
runtime="${runtime:-$usual_runtime}"
[ "$runtime" != - ] || fail "Google offers no TPU VMs with $kind; use launch/gke.py, or launch/slurm.sbatch for GPUs"

queued=(gcloud compute tpus queued-resources)
place=("--zone=$zone")
[ -z "$project" ] || place+=("--project=$project")
create=("${queued[@]}" create "$name" "${place[@]}" "--accelerator-type=$gcp_type" "--runtime-version=$runtime" --quiet)
if [ "$slices" = 1 ]; then
  nodes=("$name")
  create+=("--node-id=$name")
else
  nodes=()
  for ((slice = 0; slice < slices; slice++)); do nodes+=("$name-$slice"); done
  create+=("--node-count=$slices" "--node-prefix=$name")
fi
[ -z "$spot" ] || create+=(--spot)
delete=("${queued[@]}" delete "$name" "${place[@]}" --force --quiet)

# The VMs bring an older Python than this needs; uv finds or fetches one.
install="mkdir -p cascade_jax && tar -xzf cascade_jax.tgz -C cascade_jax && cd cascade_jax"
install+=" && { [ -x .venv/bin/python ] || { python3 -m pip install --quiet --user uv"
install+=" && python3 -m uv venv --quiet --seed --python '>=3.11' .venv; }; }"
install+=" && .venv/bin/python -m pip install --quiet --editable '.[data,reward,serve,report,convert,tpu]'"

python=.venv/bin/python
command=("$python" -m launch.restart -- "$python" -m launch.run "--config=$config" "--workdir=$workdir")
command+=(${overrides[@]+"${overrides[@]}"})
# After a broken connection gcloud runs this again, and what it started before may still hold the TPU: that one is told
# to save and stop, and waited for. Without JAX_PLATFORMS a host that finds no TPU would go on with its CPU.
run="cd cascade_jax || exit; old=\$(cat run.pid 2>/dev/null)"
run+="; if grep -qs launch.restart /proc/\$old/cmdline; then kill -- -\$old; tail --pid=\$old -f /dev/null; fi"
run+="; echo \$\$ > run.pid; export JAX_PLATFORMS=tpu; exec$(printf ' %q' "${command[@]}")"

show() {
  echo "on this machine:"
  echo " $(printf ' %q' "${create[@]}")"
  for node in "${nodes[@]}"; do
    echo " $(printf ' %q' gcloud compute tpus tpu-vm scp cascade_jax.tgz "$node:cascade_jax.tgz" --worker=all "${place[@]}")"
    echo " $(printf ' %q' gcloud compute tpus tpu-vm ssh "$node" --worker=all "${place[@]}" "--command=$install")"
    echo " $(printf ' %q' gcloud compute tpus tpu-vm ssh "$node" --worker=all "${place[@]}" "--command=$run")"
  done
  local coordinator="worker 0 of ${nodes[0]}:8482 (TPU VMs tell JAX)" process=0 node worker
  [ "$hosts" != 1 ] || coordinator="none, it is alone"
  for node in "${nodes[@]}"; do
    for ((worker = 0; worker < hosts / slices; worker++)); do
      echo "process $process of $hosts: worker $worker of $node, $chips x $kind"
      echo "  coordinator: $coordinator"
      echo "  environment: JAX_PLATFORMS=tpu"
      echo "  command:$(printf ' %q' "${command[@]}")"
      process=$((process + 1))
    done
  done
}

state() {
  "${queued[@]}" describe "$name" "${place[@]}" "--format=value(state.state)" 2>/dev/null || echo ABSENT
}

get_slices() {
  local now
  while now="$(state)" && [ "$now" != ACTIVE ]; do
    echo "$(date +%T) $name: $now" >&2
    case "$now" in
      ABSENT) "${create[@]}" || return ;;
      SUSPENDED) "${delete[@]}" || return ;; # preempted: the request has to be made anew
      FAILED)
        "${queued[@]}" describe "$name" "${place[@]}" >&2
        return 1
        ;;
      *) sleep 30 ;;
    esac
  done
}

on_all_hosts() { # $1: a command for all hosts of all slices at once; the exit code: one that is not 75, else 75
  local node pids=() code=0 status
  for node in "${nodes[@]}"; do
    gcloud compute tpus tpu-vm ssh "$node" --worker=all "${place[@]}" "--command=$1" &
    pids+=($!)
  done
  for process in "${pids[@]}"; do
    status=0
    wait "$process" || status=$?
    if [ "$code" = 0 ] || { [ "$code" = 75 ] && [ "$status" != 0 ]; }; then code=$status; fi
  done
  return "$code"
}

copy_and_install() {
  local node archive
  archive="$(mktemp -d)/cascade_jax.tgz"
  git ls-files -z --cached --others --exclude-standard | tar --null -czf "$archive" -T - || return
  for node in "${nodes[@]}"; do
    gcloud compute tpus tpu-vm scp "$archive" "$node:cascade_jax.tgz" --worker=all "${place[@]}" || return
  done
  rm -r "$(dirname "$archive")"
  on_all_hosts "$install"
}

if [ -n "$dry_run" ]; then
  show
  exit 0
fi
command -v gcloud >/dev/null || fail "gcloud is not on the PATH; install the Google Cloud CLI"
while :; do
  get_slices || exit 1
  code=0
  { copy_and_install && on_all_hosts "$run"; } || code=$?
  [ "$code" != 0 ] || break
  sleep 60 # until a preemption shows
  if [ "$code" != 75 ] && [ "$(state)" = ACTIVE ]; then break; fi
  echo "$(date +%T) $name: the run is started again." >&2
done
echo "The run has ended with exit code $code. The slice is still there; delete it with: ${delete[*]}"
exit "$code"
