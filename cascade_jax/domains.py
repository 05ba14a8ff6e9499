"""A domain on the workbench: its rows and the way its samples are judged."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from cascade_jax.config import (
    CascadeConfig,
    ConfigError,
    DomainConfig,
    JudgeConfig,
    SamplingConfig,
    SourceConfig,
    build,
)
from cascade_jax.data import sources
from cascade_jax.data.chat import Chat
from cascade_jax.environment import ENVIRONMENTS
from cascade_jax.processes import shared
from cascade_jax.reward import VERIFIERS, Verdict, Verifier, judge_server, verify_groups
from cascade_jax.reward.batch import rewards_of, split_like
from cascade_jax.reward.judge import Judge
from cascade_jax.reward.preference import PreferenceSettings, preference_groups, win_rates
from cascade_jax.reward.verdict import unjudged
from cascade_jax.rollout.engine import Engine
from cascade_jax.rollout.environment import Environment
from cascade_jax.rollout.episode import make_prompt, run_prompts
from cascade_jax.rollout.episodes import run_episodes
from cascade_jax.types import Group, Prompt, Row

JUDGED = ("judged", "proof")  # kinds whose verifiers always ask a judge


@dataclass(frozen=True)
class Domain:
    """rows: split -> rows of one kind, which a verifier judges, or the environment of their episodes.

    Preferences have neither: a judge compares them within a group, as `preference` says. Nor have demonstrations (sft),
    which only teach.
    """

    name: str
    rows: Mapping[str, Sequence[Row]]
    kind: str
    thinking: bool
    verifier: Verifier | None
    judge: JudgeConfig | None = None  # None: the run's
    preference: PreferenceSettings | None = None
    comparer: Judge | None = None  # of preferences, while a run goes on
    environment: Environment | None = None

    @property
    def judged(self) -> bool:
        """Whether its samples get verdicts, so that a stage can be trained on them and scored by them."""
        return self.kind != "sft"


def load(config: CascadeConfig) -> dict[str, Domain]:
    """All domains of the config, without a judge. ConfigError where rows have no verifier; data errors pass through."""
    return {name: _load(name, domain, config.seed) for name, domain in config.domains.items()}


def _load(name: str, domain: DomainConfig, seed: int) -> Domain:
    given = {"train": domain.train, "validation": domain.validation, "test": domain.test}
    rows = {
        split: sources.load(source, split=split, seed=seed) for split, source in given.items() if source is not None
    }
    kind = _only_kind(name, given, rows)
    if domain.environment not in ["", *ENVIRONMENTS]:
        raise ConfigError(
            f"domains.{name}.environment={domain.environment!r} does not exist; choose one of "
            f"{', '.join(sorted(ENVIRONMENTS))}, or leave it empty for what rows of the kind {kind!r} take."
        )
    if (domain.environment or kind) in ENVIRONMENTS:
        try:
            environment = ENVIRONMENTS[domain.environment or kind](**domain.settings)
        except TypeError as error:
            raise ConfigError(f"domains.{name}.settings do not fit its environment: {error}.") from None
        return Domain(name, rows, kind, domain.thinking, None, domain.judge, environment=environment)
    if kind == "preference":
        settings = build(PreferenceSettings, domain.settings, f"domains.{name}.settings")
        return Domain(name, rows, kind, domain.thinking, None, domain.judge, settings)
    if kind == "sft":
        return Domain(name, rows, kind, domain.thinking, None)
    if kind not in VERIFIERS:
        raise ConfigError(
            f"domains.{name} holds rows of kind {kind!r}, which has no verifier; "
            f"kinds with one are {', '.join(sorted([*VERIFIERS, *ENVIRONMENTS, 'preference']))}."
        )
    return Domain(name, rows, kind, domain.thinking, VERIFIERS[kind](**domain.settings), domain.judge)


def _only_kind(name: str, given: Mapping[str, SourceConfig | None], rows: Mapping[str, Sequence[Row]]) -> str:
    """The kind of all rows. Those that are generated have the first one's, and may be long in the making."""
    mixed = (rows[split] for split in rows if given[split].kind != "generated")
    kinds = sorted({part[0].kind for part in rows.values()} | {row.kind for part in mixed for row in part})
    if len(kinds) > 1:
        raise ConfigError(
            f"domains.{name} holds rows of the kinds {', '.join(kinds)}; a domain has one: set row_kind in its sources."
        )
    return kinds[0]


@contextlib.contextmanager
def with_judge(domains: Mapping[str, Domain], config: JudgeConfig) -> Iterator[dict[str, Domain]]:
    """The same domains, those that need a judge with a client of their own one or of the run's (`config`).

    A judge without an address is the rule judge, served meanwhile. Domains of one judge share its client.
    """
    with contextlib.ExitStack() as stack:
        clients: dict[JudgeConfig, Judge] = {}

        def client(domain: Domain) -> Judge:
            asked = domain.judge or config
            if asked not in clients:
                url = asked.url or stack.enter_context(judge_server.running()).url
                clients[asked] = stack.enter_context(Judge(dataclasses.replace(asked, url=url)))
            return clients[asked]

        ready = {}
        for name, domain in domains.items():
            if domain.environment is not None:
                pass  # it judges by itself
            elif domain.kind == "preference":
                domain = dataclasses.replace(domain, comparer=client(domain))
            elif domain.kind in JUDGED or getattr(domain.verifier, "grading", "") == "judge":
                verifier = dataclasses.replace(domain.verifier, judge=client(domain).endpoint)
                domain = dataclasses.replace(domain, verifier=verifier)
            ready[name] = domain
        yield ready


def fitting_prompts(
    chat: Chat, domains: Mapping[str, Domain], rows: Sequence[tuple[str, Row]], *, longest: int
) -> list[Prompt]:
    """(domain, row) pairs as prompts, those of more than `longest` tokens left out. ValueError where none is left."""
    prompts = [make_prompt(chat, row, name, thinking=domains[name].thinking) for name, row in rows]
    fitting = [prompt for prompt in prompts if len(prompt.ids) <= longest]
    if not fitting:
        shortest = min(len(prompt.ids) for prompt in prompts)
        raise ValueError(
            f"no prompt fits: the shortest of {len(prompts)} has {shortest} tokens; raise buckets above {longest}."
        )
    return fitting


def roll_out(
    engine: Engine,
    chat: Chat,
    domains: Mapping[str, Domain],
    prompts: Sequence[Prompt],
    sampling: SamplingConfig,
    *,
    longest: int,
    samples_per_prompt: int,
    seed: int,
) -> list[Group]:
    """Groups in the order of the prompts: one turn each or, where the domain has an environment, whole episodes."""
    given = {"samples_per_prompt": samples_per_prompt, "seed": seed}
    environments = {name: domain.environment for name, domain in domains.items() if domain.environment is not None}
    of_one = [prompt for prompt in prompts if prompt.domain not in environments]
    of_several = [prompt for prompt in prompts if prompt.domain in environments]
    single = iter(run_prompts(engine, chat, of_one, sampling, **given) if of_one else [])
    if not of_several:
        return list(single)
    thinking = {name: domains[name].thinking for name in environments}
    several = iter(
        run_episodes(engine, chat, environments, of_several, sampling, thinking=thinking, longest=longest, **given)
    )
    return [next(several if prompt.domain in environments else single) for prompt in prompts]


def judge_groups(
    domains: Mapping[str, Domain], groups: Sequence[Group], *, seed: int
) -> tuple[Float[np.ndarray, "P G"], list[list[Verdict]]]:
    """Training rewards (NaN where no verdict was had) and verdicts. Preferences are relative within their group.

    Every process judges its share of the groups and all get all verdicts.
    """
    verdicts: list[list[Verdict]] = [[] for _ in groups]
    for name in sorted({group.prompt.domain for group in groups}):
        domain, mine = domains[name], [i for i, group in enumerate(groups) if group.prompt.domain == name]
        found = shared(lambda part, domain=domain: _judge(domain, part, seed), [groups[i] for i in mine])
        for i, verdict in zip(mine, found, strict=True):
            verdicts[i] = verdict
    return rewards_of(verdicts), verdicts


def _judge(domain: Domain, groups: Sequence[Group], seed: int) -> list[list[Verdict]]:
    if domain.environment is not None:
        return _of_environment(groups)
    if domain.kind == "preference":
        return preference_groups(domain.comparer, groups, seed=seed, **vars(domain.preference))[1]
    return _verified(domain, groups)


def _verified(domain: Domain, groups: Sequence[Group]) -> list[list[Verdict]]:
    # Whoever waits for a judge waits along with as many others as it takes at a time.
    waiting = {"threads": domain.verifier.judge.concurrency} if domain.kind in JUDGED else {}
    return verify_groups({domain.kind: domain.verifier}, groups, **waiting)[1]


def score_groups(domain: Domain, groups: Sequence[Group]) -> list[list[Verdict]]:
    """Evaluation verdicts, absolute, so that checkpoints compare; of a preference, a win rate over its reference."""
    return shared(lambda part: _score(domain, part), groups)


def _score(domain: Domain, groups: Sequence[Group]) -> list[list[Verdict]]:
    if domain.environment is not None:
        return _of_environment(groups)
    if domain.kind == "preference":
        items = [
            (g.prompt.row, sample, g.prompt.row.fields.get("reference", "")) for g in groups for sample in g.samples
        ]
        return split_like(groups, win_rates(domain.comparer, items))
    return _verified(domain, groups)


def _of_environment(groups: Sequence[Group]) -> list[list[Verdict]]:
    """What the episodes ended with."""
    return [[sample.verdict or unjudged("the sample is no episode") for sample in group.samples] for group in groups]
