import json
import math
import shutil
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from cascade_jax.metrics import MetricsLog, append_lines
from cascade_jax.report import write_report
from cascade_jax.report.charts import line_chart, moving_mean, ticks
from cascade_jax.report.load import load
from cascade_jax.report.scores import gain, headline, recoveries
from launch.report import main as report_command

DOMAINS = ("instructions", "choice", "tools", "structured", "math")

# name: kind, parent, own domains, scores in percent (in the order of DOMAINS)
STAGES = {
    "sft": ("sft", "init", DOMAINS, (59, 52, 47, 44, 44)),
    "if_rl": ("rl", "sft", ("instructions",), (83, 41, 40, 11, 33)),
    "math_rl": ("rl", "sft", ("math",), (51, 50, 46, 40, 71)),
    "multi_rl": ("rl", "if_rl", ("choice", "tools", "structured"), (62, 89, 86, 94, 34)),
    "mopd": ("distill", "multi_rl", DOMAINS, (80, 90, 87, 91, 64)),
    "rlhf": ("rl", "mopd", ("instructions",), (81, 89.5, 87, 90, 63)),
}


def example_run(folder, *, finished=6):
    """A run directory as the stage runner writes it, stopped in the middle of the stage after the first `finished`."""
    stages = {}
    for index, (name, (kind, parent, own, scores)) in enumerate(STAGES.items()):
        status = "finished" if index < finished else "running" if index == finished else "pending"
        stages[name] = {
            "kind": kind,
            "parent": parent,
            "status": status,
            "steps": 40,
            "domains": {domain: 1.0 for domain in own},
            "side_branch": name == "math_rl",
            "teachers": {},
            "evaluation": {"validation": evaluation(scores)} if index < finished else {},
            "seconds": 61.5 + index if index < finished else 0.0,
        }
        if index <= finished:
            write_logs(folder / "stages" / name, kind, own, steps=40 if index < finished else 13)
    if finished > 4:
        best = {
            "instructions": "if_rl",
            "choice": "multi_rl",
            "tools": "multi_rl",
            "structured": "multi_rl",
            "math": "math_rl",
        }
        stages["mopd"]["teachers"] = {
            domain: {
                "stage": stage,
                "reason": f"highest validation score on {domain}",
                "scores": {
                    s: STAGES[s][3][DOMAINS.index(domain)] / 100 for s in ("sft", "if_rl", "math_rl", "multi_rl")
                },
            }
            for domain, stage in best.items()
        }
    status = "finished" if finished == len(STAGES) else "stopped"
    write_json(folder / "manifest.json", {"name": "tiny cascade", "status": status, "stages": stages, "initial": {}})
    config = {"name": "tiny cascade", "order": list(STAGES), "domains": {d: {} for d in DOMAINS}, "seed": 0}
    write_json(folder / "config.json", config)
    write_json(folder / "versions.json", {"python": "3.11.7", "jax": "0.10.2"})
    return folder


def evaluation(scores):
    return {
        domain: {
            "score": score / 100,
            "count": 128,
            "low": max(0.0, score / 100 - 0.07),
            "high": min(1.0, score / 100 + 0.07),
            "no_verdict": 0,
            "truncated": 0.02,
            "length": 17.5,
        }
        for domain, score in zip(DOMAINS, scores, strict=True)
    }


def write_logs(folder, kind, own, *, steps):
    log = MetricsLog(folder / "metrics.jsonl")
    for step in range(1, steps + 1):
        wobble = 0.06 * math.sin(2.3 * step)
        metrics = {"entropy": 0.9 * math.exp(-step / 30) + wobble / 3, "sampler_gap_kl": 2e-9 * (1 + wobble)}
        time = {"rollout": 0.8 + wobble, "update": 0.4, "step": 1.25 + wobble}
        if kind == "sft":
            metrics |= {"nll": 2.2 * math.exp(-step / 15) + 0.4 + wobble, "packing": 0.93}
        else:
            metrics |= {"response_length": 17 + 20 * wobble, "truncated": 0.02}
            time |= {"reward": 0.05}
        if kind == "rl":
            metrics |= {f"reward/{d}": 0.9 - (0.5 + 0.1 * i) * math.exp(-step / 12) + wobble for i, d in enumerate(own)}
            metrics |= {"reward": 0.85 - 0.5 * math.exp(-step / 12) + wobble, "groups_kept": 16 - step // 4}
            reply = f"<think>short & simple</think>answer {step}<|im_end|>"
            sample = {"domain": own[0], "prompt": "Say <b>hello</b>", "reply": reply, "reward": float(step % 3 > 0)}
            append_lines(
                folder / "samples.jsonl", [{"step": step, **sample, "stop_reason": "stop", "components": {"format": 1}}]
            )
        if kind == "distill":
            metrics |= {"reverse_kl": 0.6 * math.exp(-step / 10) + abs(wobble) / 4}
            sample = {"domain": own[0], "prompt": "2 + 2", "reply": "4", "reward": None, "stop_reason": "length"}
            append_lines(folder / "samples.jsonl", [{"step": step, **sample}])
        log.append(step, metrics, time=time)


def write_json(path, values):
    path.write_text(json.dumps(values))


class Document(HTMLParser):
    """Fails on a tag that is closed in the wrong order, and collects what a test asks for."""

    VOID = ("meta", "br", "link", "img", "input")

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.classes, self.text, self.urls = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.classes.append(values.get("class") or "")
        self.urls += [values[key] for key in ("src", "href", "action") if key in values]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return example_run(tmp_path_factory.mktemp("run"))


def test_the_page_stands_alone(finished):
    page = write_report(finished)
    text = page.read_text()
    assert page == finished / "report.html"
    document = Document(text)
    assert all(url.startswith("#") for url in document.urls)
    assert not any(word in text for word in ("http:", "https:", "@import", "url(", "<script"))


def test_the_page_shows_scores_curves_teachers_and_samples(finished):
    document = Document(write_report(finished).read_text())
    text = "".join(document.text)
    framed = [c for c in document.classes if "own" in c.split()]
    assert len(framed) == sum(len(own) for _, _, own, _ in STAGES.values())
    assert "83.0+24.0" in text and "11.0\N{MINUS SIGN}33.0" in text  # if_rl on instructions and on structured
    for title in ("Reward", "Reverse KL", "Entropy", "Sampler gap", "Sample length", "Time of a step"):
        assert title in text
    assert "highest validation score on tools" in text
    assert "<think>short & simple</think>answer 1<|im_end|>" in text  # as text, not as tags
    assert '"seed": 0' in text and "0.10.2" in text
    drawn = [c for c in document.classes if c.startswith("line ")]
    assert len(drawn) > 30


def test_lost_and_won_back_in_points(finished):
    (recovery,) = recoveries(load(finished), "validation")
    # before mopd: instructions 83 (if_rl) -> 62, math 71 (math_rl) -> 34; the other three are at their best
    assert recovery.best["math"] == ("math_rl", pytest.approx(71))
    assert recovery.dropped == {"instructions": pytest.approx(21), "math": pytest.approx(37)}
    assert recovery.won == {"instructions": pytest.approx(18), "math": pytest.approx(30)}
    assert "won back 83 % of the 58.0 points lost" in headline(load(finished), "validation")


def test_what_was_never_lost_is_not_won_back(tmp_path):
    example_run(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    scores = manifest["stages"]["mopd"]["evaluation"]["validation"]
    scores["instructions"]["score"], scores["math"]["score"] = 0.97, 0.30
    write_json(tmp_path / "manifest.json", manifest)
    (recovery,) = recoveries(load(tmp_path), "validation")
    assert recovery.won == {"instructions": pytest.approx(21), "math": pytest.approx(-4)}


def test_gain_is_against_the_parent_not_the_row_above(finished):
    run = load(finished)
    stages = {stage.name: stage for stage in run.stages}
    assert gain(run, stages["multi_rl"], "math", "validation") == pytest.approx(1)  # 34 - 33 of if_rl
    assert gain(run, stages["sft"], "math", "validation") is None  # init was not scored


def test_test_scores_are_the_headline_once_all_stages_have_them(tmp_path):
    example_run(tmp_path, finished=2)
    assert load(tmp_path).split() == "validation"
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["stages"]["sft"]["evaluation"]["test"] = evaluation((50, 50, 50, 50, 50))
    write_json(tmp_path / "manifest.json", manifest)
    assert load(tmp_path).split() == "validation"
    manifest["stages"]["if_rl"]["evaluation"]["test"] = evaluation((60, 50, 50, 50, 50))
    manifest["initial"] = {"test": evaluation((10, 10, 10, 10, 10))}
    write_json(tmp_path / "manifest.json", manifest)
    run = load(tmp_path)
    assert run.split() == "test"
    assert headline(run, "test") == "Mean test score over 5 domains: 52.0 % after if_rl, +2.0 points against sft."
    assert gain(run, run.stages[1], "math", "test") == pytest.approx(40)


@pytest.mark.parametrize("finished_stages", range(len(STAGES)))
def test_a_run_stopped_in_any_stage(tmp_path, finished_stages):
    example_run(tmp_path, finished=finished_stages)
    with (tmp_path / "stages" / list(STAGES)[finished_stages] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 14, "metr')
    document = Document(write_report(tmp_path).read_text())
    assert "13 of 40 steps" in "".join(document.text)
    assert "| stage |" in (tmp_path / "report.md").read_text()


def test_a_run_that_has_only_just_begun(tmp_path):
    example_run(tmp_path, finished=0)
    shutil.rmtree(tmp_path / "stages")
    (tmp_path / "versions.json").unlink()
    (tmp_path / "config.json").unlink()
    assert "No stage has been scored yet" in "".join(Document(write_report(tmp_path).read_text()).text)


def test_values_that_are_missing_leave_a_gap(tmp_path):
    example_run(tmp_path)
    MetricsLog(tmp_path / "stages" / "sft" / "metrics.jsonl").append(
        41, {"nll": math.nan, "late": 1.0}, time={"step": 1.0}
    )
    Document(write_report(tmp_path).read_text())
    chart = line_chart({"loss": [(1, 1.0), (2, None), (3, 2.0)]})
    assert chart.count("<circle") == 2 and chart.count("M") == 2  # two strokes
    assert line_chart({"loss": [(1, None)]}) == ""


def test_the_markdown_is_a_table_per_section(finished):
    write_report(finished)
    lines = (finished / "report.md").read_text().splitlines()
    assert lines[0] == "# tiny cascade"
    assert "| if_rl | **83.0 (+24.0)** | 41.0 (-11.0) | 40.0 (-7.0) | 11.0 (-33.0) | 33.0 (-11.0) | 41.6 |" in lines
    for above, line in pairwise(lines):
        if above.startswith("|") and line.startswith("|"):
            assert above.count("|") == line.count("|")


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="no manifest"):
        write_report(tmp_path)


@pytest.mark.parametrize("low, high", [(0, 1), (0.3, 0.32), (-5, 7), (2e-9, 2.1e-9), (3, 3), (0, 0), (1e4, 1e6)])
def test_ticks_enclose_the_values_and_are_few(low, high):
    marks = ticks(low, high)
    assert marks[0] - low <= 1e-9 * abs(low) and high - marks[-1] <= 1e-9 * abs(high)
    assert 3 <= len(marks) <= 6


def test_moving_mean():
    assert moving_mean([(1, 1.0), (2, 3.0), (3, None), (4, 5.0)], 2) == [(1, 1.0), (2, 2.0), (3, None), (4, 5.0)]


def test_the_command(finished, tmp_path, capsys):
    assert report_command([str(finished)]) == 0
    assert capsys.readouterr().out.strip() == f"The page: {(finished / 'report.html').as_uri()}"
    assert report_command([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} is not the directory of a run")
