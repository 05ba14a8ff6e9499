"""The graph of stages: parents, side branches, teachers."""

import pytest

from cascade_jax import graph
from cascade_jax.config import CascadeConfig, ConfigError, build
from configs import tiny_cascade


def cascade(stages: dict[str, dict], **changes) -> CascadeConfig:
    values = tiny_cascade.get_config().to_dict()
    return build(CascadeConfig, {**values, "stages": stages, "order": list(stages), **changes})


def stage(kind: str = "rl", **changes) -> dict:
    return {"kind": kind, "steps": 1, "domains": {"math": 1.0}, "length": 256, **changes}


def distill(teacher: str, **changes) -> dict:
    return stage("distill", distill={"teachers": {"math": teacher}}, **changes)


def test_a_side_branch_is_nobodys_parent_unless_named():
    config = cascade(
        {
            "sft": stage("sft"),
            "side": stage(side_branch=True),
            "main": stage(),
            "other": stage(parent="sft", side_branch=True),
            "mopd": distill("side"),
        }
    )
    assert graph.parents(config) == {"sft": "init", "side": "sft", "main": "sft", "other": "sft", "mopd": "main"}
    graph.check(config)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({"a": stage(parent="b"), "b": stage()}, "stages.a.parent='b' is not trained before a"),
        ({"a": stage(parent="a")}, "stages.a.parent='a' is not trained before a"),
        ({"a": stage(parent="nowhere")}, "choose one of init"),
        ({"a": stage(), "m": distill("later"), "later": stage()}, "='later' is not yet trained when m starts"),
        ({"a": stage(), "m": distill("m")}, "='m' is not yet trained when m starts"),
        ({"m": distill("best")}, "it needs a teacher"),
        ({"a": stage(domains={"maths": 1.0})}, "names 'maths', which is not declared"),
    ],
)
def test_a_graph_that_cannot_run_is_refused_by_name(stages, message):
    with pytest.raises(ConfigError, match=message):
        graph.check(cascade(stages))


def test_order_and_stages_must_agree():
    with pytest.raises(ConfigError, match=r"these differ: \['b'\]"):
        cascade({"a": stage()}, order=["a", "b"])


def test_best_is_the_highest_score_and_the_earliest_of_equals():
    scores = {"sft": {"math": 0.5}, "if_rl": {"math": 0.7}, "multi_rl": {"math": 0.7}, "late": {"math": None}}
    assert graph.choose_teacher("best", "math", scores, ["sft", "if_rl", "multi_rl", "late"])[0] == "if_rl"
    assert graph.choose_teacher("sft", "math", scores, ["sft", "if_rl"]) == ("sft", "named in the config")
    with pytest.raises(ConfigError, match="no finished stage has a validation score on 'code'"):
        graph.choose_teacher("best", "code", scores, ["sft"])
