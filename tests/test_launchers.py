"""What every host would run: dry runs of the launchers on machines and with values that they were not written for."""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launch import gke, xm_launch
from launch.topology import topology

ROOT = Path(__file__).resolve().parent.parent
CONFIG = "configs/nemotron_cascade2_30b.py:v6e:16x16"
WORKDIR = "gs://bucket/it's my run"
OVERRIDES = ['--config.name=a "b" $HOME $(id) $$', "--config.tokenizer=C:\\x*;&|ü", "--config.judge.url="]
RUN = [f"--config={CONFIG}", f"--workdir={WORKDIR}", *OVERRIDES]
TPU = ["--name=pod", "--zone=us-east5-a"]
IMAGE = ["--name=pod", "--image=registry/cascade:1"]


def run(*command, **environment):
    """(exit code, stdout, stderr) of a launcher in a place where no cluster's tools are found."""
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**clean(), **environment}, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def clean():
    python = os.path.dirname(sys.executable)
    return {"PATH": f"{python}:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT)}


def dry_run(launcher, *arguments, **environment):
    """A host each: {"where", "coordinator", "environment", "command": list}, as a shell reads the command."""
    starts = {
        "tpu": ["bash", "launch/tpu_pod.sh", *TPU],
        "slurm": ["bash", "launch/slurm.sbatch"],
        "gke": [sys.executable, "-m", "launch.gke", *IMAGE],
        "xm": [sys.executable, "-m", "launch.xm_launch"],
    }
    code, out, error = run(*starts[launcher], *arguments, *RUN, "--dry_run", **environment)
    assert (code, error) == (0, "")
    found = []
    for line in out.splitlines():
        line = line.removeprefix("# ")
        if start := re.match(r"process (\d+) of (\d+): (.*)", line):
            assert int(start[1]) == len(found)
            found.append({"of": int(start[2]), "where": start[3]})
        elif field := re.match(r"  (coordinator|environment|command): (.*)", line):
            # bash itself reads what a person would paste into it
            found[-1][field[1]] = shell_words(field[2]) if field[1] == "command" else field[2]
    assert all(host["of"] == len(found) for host in found)
    return found


def shell_words(text):
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {text}"], capture_output=True, text=True, check=True, env=clean()
    )
    return done.stdout.split("\0")[:-1]


def expected(python, *more):
    return [python, "-m", "launch.restart", "--", python, "-m", "launch.run", *RUN, *more]


@pytest.mark.parametrize(
    ("name", "hosts", "chips_per_host", "devices", "gcp_type"),
    [
        ("v5e:1x1", 1, 1, 1, "v5litepod-1"),
        ("v5e:2x4", 1, 8, 8, "v5litepod-8"),
        ("v5e:8x8", 16, 4, 64, "v5litepod-64"),
        ("v6e:16x16", 64, 4, 256, "v6e-256"),
        ("v5p:2x2x1", 1, 4, 4, "v5p-8"),
        ("v5p:4x4x4", 16, 4, 64, "v5p-128"),
        ("v5p:8x8x8", 128, 4, 512, "v5p-1024"),
        ("2xv5p:4x4x4", 32, 4, 128, "v5p-128"),
        ("tpu7x:4x4x4", 16, 4, 128, "tpu7x-128"),
        ("h100:8", 1, 8, 8, "a3-highgpu-8g"),
        ("h200:32", 4, 8, 32, "a3-ultragpu-8g"),
    ],
)
def test_a_machine_has_the_hosts_that_google_says(name, hosts, chips_per_host, devices, gcp_type):
    t = topology(name)
    assert (t.hosts, t.chips_per_host, t.devices, t.gcp_type) == (hosts, chips_per_host, devices, gcp_type)
    assert t.chips == t.hosts * t.chips_per_host


@pytest.mark.parametrize(
    "name", ["", "v5p", "v9:2x2", "v5p:4x4", "v5e:3x3", "v5p:4x4x5", "v5p:0x4x4", "0xv5p:4x4x4", "2xh200:8", "h200:12"]
)
def test_a_machine_that_there_is_not_is_one_sentence_with_those_there_are(name):
    with pytest.raises(ValueError, match=r"^topology='.*'.* known are v5e .*\(h200:16\)\.$"):
        topology(name)


@pytest.mark.parametrize(
    ("name", "hosts", "last"),
    [
        ("v5e:8x8", 16, "worker 15 of pod, 4 x v5e"),
        ("2xv5p:2x2x2", 4, "worker 1 of pod-1, 4 x v5p"),
        ("v6e:2x4", 1, "worker 0 of pod, 8 x v6e"),
    ],
)
def test_tpu_vms_run_it_on_every_worker(name, hosts, last):
    found = dry_run("tpu", f"--topology={name}")
    assert len(found) == hosts and found[-1]["where"] == last
    assert all(host["command"] == expected(".venv/bin/python") for host in found)
    assert all(host["environment"] == "JAX_PLATFORMS=tpu" for host in found)
    first = "pod-0" if name[0] == "2" else "pod"
    assert {host["coordinator"].split(" (")[0] for host in found} == {
        f"worker 0 of {first}:8482" if hosts > 1 else "none, it is alone"
    }


GCLOUD = """#!/bin/bash
printf '%s\\n' "$*" >> "$LOG"
for a in "$@"; do
  case "$a" in
    describe) cat "$LOG.state"; exit ;;
    create) echo ACTIVE > "$LOG.state" ;;
    delete) rm "$LOG.state" ;;
    --command=*pip*) exit 0 ;;
    --command=*) cd "$HOME" && exec bash -c "${a#*=}" ;;
  esac
done
"""
PREEMPTED_ONCE = """#!/bin/bash
printf '%s\\0' "$JAX_PLATFORMS" "$@" > "$LOG.ran"
[ -e "$LOG.again" ] && exit 0
touch "$LOG.again" && echo SUSPENDED > "$LOG.state" && exit 75
"""


def test_a_preempted_slice_is_asked_for_again_and_runs_what_the_dry_run_shows(tmp_path):
    """The script with a gcloud that keeps what it is asked, and does itself what a host is told."""
    for name, text in (
        ("gcloud", GCLOUD),
        ("sleep", "#!/bin/bash\n"),
        ("cascade_jax/.venv/bin/python", PREEMPTED_ONCE),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    tools = {"PATH": f"{tmp_path}:{clean()['PATH']}", "LOG": str(tmp_path / "log"), "HOME": str(tmp_path)}
    code, out, _ = run("bash", "launch/tpu_pod.sh", *TPU, "--topology=v5p:4x4x4", "--spot", *RUN, **tools)
    assert code == 0 and "queued-resources delete pod --zone=us-east5-a --force" in out
    assert (tmp_path / "log.ran").read_text().split("\0")[:-1] == [
        "tpu",
        *expected("")[1:4],
        *expected(".venv/bin/python")[4:],
    ]
    asked = (tmp_path / "log").read_text()
    calls = [word for line in asked.splitlines() for word in ("create", "delete", "scp") if f" {word} " in line]
    assert calls == ["create", "scp", "delete", "create", "scp"]
    assert "create pod --zone=us-east5-a --accelerator-type=v5p-128 --runtime-version=v2-alpha-tpuv5" in asked
    assert "--node-id=pod --spot" in asked


@pytest.mark.parametrize(("nodes", "environment"), [(2, {}), (4, {}), (3, {"SLURM_JOB_NUM_NODES": "3"})])
def test_slurm_runs_it_on_every_node(nodes, environment):
    given = [f"--nodes={nodes}"] if not environment else []
    found = dry_run("slurm", *given, **environment)
    assert len(found) == nodes
    assert all(host["command"] == expected("python") for host in found)
    assert all(host["environment"] == "JAX_PLATFORMS=cuda" for host in found)


def test_slurm_takes_every_line_of_the_head():
    """sbatch's own long options, from its manual."""
    flags, values = "requeue exclusive", "job-name nodes ntasks-per-node gpus-per-node mem time open-mode output signal"
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in flags.split():
        parser.add_argument(f"--{name}", action="store_true")
    for name in values.split():
        parser.add_argument(f"--{name}")
    lines = (ROOT / "launch" / "slurm.sbatch").read_text().splitlines()
    head = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert lines[1 : 1 + len(head)] == [f"#SBATCH {line}" for line in head], "sbatch stops reading at the first command"
    given = parser.parse_args(head)
    assert (given.ntasks_per_node, given.gpus_per_node, given.requeue) == ("1", "8", True)
    assert re.fullmatch(r"TERM@\d+", given.signal)


@pytest.mark.parametrize("script", ["launch/tpu_pod.sh", "launch/slurm.sbatch"])
def test_bash_reads_the_scripts(script):
    assert run("bash", "-n", script) == (0, "", "")


@pytest.mark.parametrize(("ends", "asked"), [(75, True), (0, False), (2, False)])
def test_a_slurm_job_is_queued_again_when_the_run_asks_for_it(tmp_path, ends, asked):
    (tmp_path / "srun").write_text(f"#!/bin/bash\nprintf '%s\\0' \"$@\" > {tmp_path}/ran\nexit {ends}\n")
    (tmp_path / "scontrol").write_text(f'#!/bin/bash\necho "$@" > {tmp_path}/asked\n')
    for tool in ("srun", "scontrol"):
        (tmp_path / tool).chmod(0o755)
    job = {"PATH": f"{tmp_path}:{clean()['PATH']}", "SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "4"}
    code, _, error = run("bash", "launch/slurm.sbatch", *RUN, **job)
    ran = (tmp_path / "ran").read_text().split("\0")[:-1]
    assert (code, error) == (ends, "")
    assert ran[:2] == ["--nodes=4", "--ntasks=4"] and ran[-len(expected("")) :] == expected("python")
    assert (tmp_path / "asked").exists() == asked
    assert not asked or (tmp_path / "asked").read_text() == "requeue 17\n"


def jobset(name):
    code, out, error = run(sys.executable, "-m", "launch.gke", *IMAGE, f"--topology={name}", *RUN, "--dry_run")
    assert (code, error) == (0, "")
    return yaml.safe_load(out)


def kubernetes_reads(arguments, index):
    """The expansion of $(NAME) and $$ as Kubernetes defines it, with the one name that the Job sets."""
    pattern = re.compile(r"\$\$|\$\(JOB_COMPLETION_INDEX\)")
    return [pattern.sub(lambda m: "$" if m[0] == "$$" else str(index), argument) for argument in arguments]


@pytest.mark.parametrize(
    ("name", "slices", "hosts", "where", "limit"),
    [
        ("v5p:4x4x4", 1, 16, {"tpu-accelerator": "tpu-v5p-slice", "tpu-topology": "4x4x4"}, {"google.com/tpu": "4"}),
        ("2xv6e:4x4", 2, 4, {"tpu-accelerator": "tpu-v6e-slice", "tpu-topology": "4x4"}, {"google.com/tpu": "4"}),
        ("tpu7x:2x2x2", 1, 2, {"tpu-accelerator": "tpu7x", "tpu-topology": "2x2x2"}, {"google.com/tpu": "4"}),
        ("v5e:2x4", 1, 1, {"tpu-accelerator": "tpu-v5-lite-podslice", "tpu-topology": "2x4"}, {"google.com/tpu": "8"}),
        ("h200:16", 1, 2, {"accelerator": "nvidia-h200-141gb"}, {"nvidia.com/gpu": "8"}),
    ],
)
def test_every_pod_of_the_jobset_runs_what_the_dry_run_shows(name, slices, hosts, where, limit):
    shown = dry_run("gke", f"--topology={name}")
    [replicated] = jobset(name)["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    assert (replicated["replicas"], job["parallelism"], job["completions"]) == (slices, hosts, hosts)
    assert pod["nodeSelector"] == {f"cloud.google.com/gke-{key}": value for key, value in where.items()}
    [container] = pod["containers"]
    assert container["resources"] == {"limits": limit}
    assert len(shown) == slices * hosts
    place = "pod-slice-0-0.pod:8476"
    for process, host in enumerate(shown):
        gpus = [f"--coordinator={place}", f"--processes={hosts}", f"--process={process}"] if "h200" in name else []
        assert host["command"] == expected("python", *gpus)
        assert kubernetes_reads(container["command"], process % hosts) == host["command"]
        assert host["where"].startswith(f"pod pod-slice-{process // hosts}-{process % hosts},")


JOBSET = {  # of jobset.x-k8s.io/v1alpha2, the fields in use
    "metadata": {"name": str, "annotations": dict},
    "spec": {
        "network": {"enableDNSHostnames": bool},
        "failurePolicy": {"maxRestarts": int, "rules": [{"name": str, "action": str, "onJobFailureReasons": [str]}]},
        "replicatedJobs": [{"name": str, "replicas": int, "template": {"spec": dict}}],
    },
}


def fits(value, schema, where=""):
    if isinstance(schema, dict):
        assert isinstance(value, dict) and set(value) == set(schema), where
        for key in schema:
            fits(value[key], schema[key], f"{where}.{key}")
    elif isinstance(schema, list):
        for item in value:
            fits(item, schema[0], where)
    else:
        assert type(value) is schema, f"{where}: {value!r}"


@pytest.mark.parametrize("name", ["2xv5p:4x4x4", "h100:8"])
def test_the_jobset_has_the_fields_of_its_version(name):
    made = jobset(name)
    assert (made.pop("apiVersion"), made.pop("kind")) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    fits(made, JOBSET)
    [rule] = made["spec"]["failurePolicy"]["rules"]
    assert rule["action"] == "FailJobSet" and re.fullmatch("[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])


@pytest.mark.parametrize("name", ["2xv5p:4x4x4", "h200:16"])
def test_kubernetes_own_client_reads_the_job(name):
    """Its models, and strictly: a field that they do not have would be dropped without a word."""
    models = pytest.importorskip("kubernetes.client.models", reason="needs pip install kubernetes")

    def read(value, kind):
        if match := re.fullmatch(r"[lL]ist\[(.+)\]", kind):
            assert isinstance(value, list)
            return [read(item, match[1]) for item in value]
        if match := re.fullmatch(r"[dD]ict[(\[](\w+), (\w+)[)\]]", kind):
            assert all(isinstance(key, str) for key in value)
            return value
        if kind in ("str", "int", "bool", "object"):
            assert kind == "object" or type(value).__name__ == kind, (value, kind)
            return value
        model = getattr(models, kind)
        names = {there: here for here, there in model.attribute_map.items()}
        unknown = sorted(set(value) - set(names))
        assert not unknown, f"{kind} has no {unknown}"
        return model(**{names[key]: read(item, model.openapi_types[names[key]]) for key, item in value.items()})

    [replicated] = jobset(name)["spec"]["replicatedJobs"]
    job = read(replicated["template"]["spec"], "V1JobSpec")
    assert job.pod_failure_policy.rules[0].on_exit_codes.values == [1, 2]
    with pytest.raises(AssertionError, match="V1JobSpec has no"):
        read({**replicated["template"]["spec"], "backofLimit": 0}, "V1JobSpec")


def test_xmanager_runs_it_here_and_as_a_slurm_job():
    alone = dry_run("xm")
    assert [host["command"] for host in alone] == [expected(sys.executable)]
    several = dry_run("xm", "--processes=3")
    for process, host in enumerate(several):
        assert host["command"] == expected(
            sys.executable, "--coordinator=localhost:8476", "--processes=3", f"--process={process}"
        )
    assert dry_run("xm", "--executor=slurm", "--topology=h200:32") == dry_run("slurm", "--nodes=4")
    [vertex] = dry_run("xm", "--executor=vertex", "--topology=a100:8", "--image=x")
    assert vertex["command"] == expected("python") and vertex["where"].endswith("a2-highgpu-8g")


@pytest.mark.skipif(importlib.util.find_spec("xmanager") is None, reason="needs pip install xmanager")
@pytest.mark.parametrize(("code", "ends"), [(0, 0), (3, 1)])
def test_xmanager_itself_runs_it_and_says_how_it_ended(tmp_path, code, ends):
    for name in ("__init__", "hosts", "topology", "xm_launch"):
        (tmp_path / "launch").mkdir(exist_ok=True)
        (tmp_path / "launch" / f"{name}.py").write_text((ROOT / "launch" / f"{name}.py").read_text())
    (tmp_path / "launch" / "restart.py").write_text(
        f"import sys; open('ran', 'w').write('\\0'.join(sys.argv[1:])); sys.exit({code})"
    )
    (tmp_path / "c.py").write_text("")
    arguments = ["--config=c.py", "--workdir=a b", *OVERRIDES]
    done = subprocess.run(
        [sys.executable, "-m", "launch.xm_launch", *arguments],
        cwd=tmp_path,
        env={**clean(), "PYTHONPATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == ends, done.stderr
    assert (tmp_path / "ran").read_text().split("\0") == ["--", sys.executable, "-m", "launch.run", *arguments]


HERE = ["--config=configs/tiny_cascade.py", "--workdir=w"]
TOPOLOGY = "--topology=v5p:4x4x4"


@pytest.mark.parametrize(
    ("launcher", "arguments", "sentence"),
    [
        ("tpu", [*TPU, *HERE, "--topology=v9:2x2"], "'v9:2x2' is not known"),
        ("tpu", [*TPU, *HERE, "--topology=tpu7x:4x4x4"], "no TPU VMs with tpu7x"),
        ("tpu", [*TPU, *HERE, "--topology=h200:8"], "no TPU VMs with h200"),
        ("tpu", ["--zone=z", *HERE, TOPOLOGY], "--name is missing"),
        ("tpu", ["--zone=z", "--name=A_b", *HERE, TOPOLOGY], "is no name"),
        ("tpu", [*TPU, TOPOLOGY, "--workdir=w"], "--config is missing"),
        ("tpu", [*TPU, TOPOLOGY, "--workdir=w", "--config=no.py"], "no config file 'no.py'"),
        ("tpu", [*TPU, TOPOLOGY, *HERE, "--confg=x"], "'--confg=x' is no argument"),
        ("slurm", ["--workdir=w"], "--config is missing"),
        ("slurm", ["--config=configs/tiny_cascade.py"], "--workdir is missing"),
        ("slurm", ["--config=no.py:v5", "--workdir=w"], "no config file 'no.py'"),
        ("slurm", [*HERE, "--nodes=none"], "--nodes=none is no number"),
        ("slurm", [*HERE], "is no SLURM job"),
        ("gke", [*IMAGE, *HERE, "--topology=v5p:5x5x5"], "there is no v5p of that shape"),
        ("gke", ["--image=x", *HERE, TOPOLOGY], "required: --name"),
        ("gke", [*IMAGE, TOPOLOGY, "--workdir=w", "--config=no.py"], "no config file 'no.py'"),
        ("gke", [*IMAGE, TOPOLOGY, *HERE, "--config.seed"], "--config.seed has no value"),
        ("gke", [*IMAGE, TOPOLOGY, *HERE], "kubectl is not on the PATH"),
        ("xm", [*HERE, "--executor=slurm"], "--topology is for slurm and vertex"),
        ("xm", [*HERE, "--executor=slurm", TOPOLOGY], "is a TPU slice"),
        ("xm", [*HERE, "--executor=vertex", "--image=x", "--topology=h100:8"], "take a100:8"),
        ("xm", [*HERE, "--processes=0"], "--processes=0 does not fit"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(launcher, arguments, sentence, capsys):
    if launcher in ("gke", "xm"):  # in this process, which is quicker; kubectl is not where PATH says
        with pytest.raises(SystemExit) as ended, pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", "/nowhere")
            patch.chdir(ROOT)
            {"gke": gke, "xm": xm_launch}[launcher].main(arguments)
        code, error = ended.value.code, capsys.readouterr().err
    else:
        code, _, error = run("bash", {"tpu": "launch/tpu_pod.sh", "slurm": "launch/slurm.sbatch"}[launcher], *arguments)
    assert code == 2 and sentence in error
    assert error.startswith("error: ") and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "launch/tpu_pod.sh"],
        ["bash", "launch/slurm.sbatch"],
        [sys.executable, "-m", "launch.gke"],
        [sys.executable, "-m", "launch.xm_launch"],
    ],
)
def test_help_tells_the_flags(command):
    code, out, _ = run(*command, "--help")
    assert code == 0 and "--dry_run" in out and "--workdir" in out and "--config" in out
