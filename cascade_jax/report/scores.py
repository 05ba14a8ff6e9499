"""What the cascade gained, lost and won back, in points (hundredths of the pass rate)."""

from collections.abc import Mapping
from dataclasses import dataclass

from cascade_jax.report.load import Run, Score, Stage


@dataclass(frozen=True)
class Recovery:
    """One distillation stage: what the stages before it had lost, and what it won back, per domain that had dropped."""

    stage: str
    parent: str
    best: Mapping[str, tuple[str, float]]  # domain -> the stage with the highest score before, and that score
    dropped: Mapping[str, float]  # domain -> points between the best stage and the parent
    won: Mapping[
        str, float
    ]  # domain -> points from parent to stage, at most what had dropped; empty before it is scored

    @property
    def lost_points(self) -> float:
        return sum(self.dropped.values())

    @property
    def won_points(self) -> float:
        return sum(self.won.values())


def domains(run: Run) -> list[str]:
    """All that were ever scored, in the order of the config, then of appearance."""
    scored = dict.fromkeys(domain for stage in run.stages for split in stage.evaluation.values() for domain in split)
    return [d for d in run.config.get("domains", {}) if d in scored] + [
        d for d in scored if d not in run.config.get("domains", {})
    ]


def points(stage: Stage, domain: str, split: str) -> float | None:
    score = stage.evaluation.get(split, {}).get(domain)
    return None if score is None else 100 * score.score


def gain(run: Run, stage: Stage, domain: str, split: str) -> float | None:
    """Points over the checkpoint that the stage started from; None where either was not scored."""
    parents = {other.name: other for other in run.stages}
    after = points(stage, domain, split)
    before = points(parents[stage.parent], domain, split) if stage.parent in parents else None
    return None if after is None or before is None else after - before


def recoveries(run: Run, split: str) -> list[Recovery]:
    """One per distillation stage whose parent was scored."""
    result = []
    by_name = {stage.name: stage for stage in run.stages}
    for index, stage in enumerate(run.stages):
        parent = by_name.get(stage.parent)
        if stage.kind != "distill" or parent is None or not parent.evaluation.get(split):
            continue
        best: dict[str, tuple[str, float]] = {}
        for domain in parent.evaluation[split]:
            known = [(s.name, points(s, domain, split)) for s in run.stages[:index]]
            best[domain] = max(((name, p) for name, p in known if p is not None), key=lambda pair: pair[1])
        before = {domain: points(parent, domain, split) or 0.0 for domain in best}
        dropped = {domain: best[domain][1] - before[domain] for domain in best if best[domain][1] > before[domain]}
        after = {domain: points(stage, domain, split) for domain in dropped}
        won = {
            domain: min(after[domain] - before[domain], drop)
            for domain, drop in dropped.items()
            if after[domain] is not None
        }
        result.append(Recovery(stage.name, parent.name, best, dropped, won))
    return result


def main_line(run: Run) -> list[Stage]:
    """The scored stages that later ones start from, and the last one: side branches are left out."""
    return [stage for stage in run.stages if stage.evaluation and not stage.side_branch]


def mean_points(stage: Stage, split: str) -> float:
    scores = stage.evaluation.get(split, {}).values()
    return 100 * sum(score.score for score in scores) / len(scores) if scores else 0.0


def headline(run: Run, split: str) -> str:
    """The result in one sentence."""
    line = [stage for stage in main_line(run) if stage.evaluation.get(split)]
    if not line:
        return f"No stage has been scored yet; the run is {run.status}."
    first = next((stage for stage in line if stage.kind != "init"), line[0])
    last = line[-1]
    text = f"Mean {split} score over {len(domains(run))} domains: {mean_points(last, split):.1f} % after {last.name}"
    if last is not first:
        text += f", {mean_points(last, split) - mean_points(first, split):+.1f} points against {first.name}"
    done = [r for r in recoveries(run, split) if r.won and r.lost_points > 0]
    if done:
        r = done[-1]
        text += (
            f"; {r.stage} won back {100 * r.won_points / r.lost_points:.0f} % of the {r.lost_points:.1f} points lost"
        )
    return text + "."


def interval(score: Score) -> str:
    """For a person: '62.5 % of 128 rows, 95 % interval 53.9 to 70.4, 2 without verdict'."""
    text = f"{100 * score.score:.1f} % of {score.count} rows"
    if score.low is not None and score.high is not None:
        text += f", 95 % interval {100 * score.low:.1f} to {100 * score.high:.1f}"
    if score.no_verdict:
        text += f", {score.no_verdict} without verdict"
    if score.truncated:
        text += f", {100 * score.truncated:.0f} % cut off"
    if score.length is not None:
        text += f", {score.length:.0f} tokens on average"
    return text
