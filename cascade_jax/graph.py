"""The graph of stages: who starts from whom, who teaches whom. Pure functions, checked before any step."""

from collections.abc import Mapping, Sequence

from cascade_jax.config import CascadeConfig, ConfigError

INIT = "init"  # the weights that the run started from


def parents(config: CascadeConfig) -> dict[str, str]:
    """Stage -> the stage whose final weights it starts from; unnamed: the last earlier stage of the main line."""
    result: dict[str, str] = {}
    main_line = INIT
    for name in config.order:
        stage = config.stages[name]
        result[name] = stage.parent or main_line
        if not stage.side_branch:
            main_line = name
    return result


def check(config: CascadeConfig) -> None:
    """ConfigError where a parent or a teacher is unknown or comes later, or a domain is not declared."""
    parent = parents(config)
    done: list[str] = []
    for name in config.order:
        stage = config.stages[name]
        where = f"stages.{name}"
        if parent[name] not in [INIT, *done]:
            raise ConfigError(
                f"{where}.parent={parent[name]!r} is not trained before {name}; "
                f"choose one of {', '.join([INIT, *done])}, or change the order."
            )
        for domain in stage.domains:
            if domain not in config.domains:
                raise ConfigError(
                    f"{where}.domains names {domain!r}, which is not declared; domains has {', '.join(config.domains)}."
                )
        if stage.kind == "distill":
            for domain, teacher in stage.distill.teachers.items():
                if domain not in config.domains:
                    raise ConfigError(f"{where}.distill.teachers names the unknown domain {domain!r}.")
                if teacher not in ["best", *done]:
                    raise ConfigError(
                        f"{where}.distill.teachers.{domain}={teacher!r} is not yet trained when {name} starts; "
                        f"choose best or one of {', '.join(done)}."
                    )
            if not done:
                raise ConfigError(f"{where} is a distill stage with no stage before it; it needs a teacher.")
        done.append(name)


def choose_teacher(
    wish: str, domain: str, scores: Mapping[str, Mapping[str, float | None]], order: Sequence[str]
) -> tuple[str, str]:
    """(stage, reason). `best`: the finished stage with the highest validation score on the domain; ties: earliest.

    scores: stage -> domain -> score; order: the finished stages, earliest first.
    """
    if wish != "best":
        return wish, "named in the config"
    scored = [(name, scores[name].get(domain)) for name in order]
    known = [(name, score) for name, score in scored if score is not None]
    if not known:
        raise ConfigError(
            f"no finished stage has a validation score on {domain!r}; name its teacher instead of 'best'."
        )
    name, score = max(known, key=lambda pair: pair[1])
    return name, f"highest validation score on {domain}: {100 * score:.1f} %"
