"""From a (nested) mapping, such as an ml_collections ConfigDict, to frozen dataclasses, and back to plain values."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin


class ConfigError(ValueError):
    """A user's mistake in a config; the message says what was given, what is allowed and the usual fix."""


def require(condition: bool, message: str) -> None:
    """ConfigError with the message unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def build(cls: type, values: Mapping[str, Any], where: str = "config") -> Any:
    """A frozen dataclass out of a mapping. ConfigError names the key at fault."""
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]
    for key in values:
        if key not in names:
            close = difflib.get_close_matches(key, names, 1)
            hint = f"did you mean {close[0]}?" if close else f"allowed are {', '.join(names)}."
            raise ConfigError(f"{where}.{key} is not a setting; {hint}")
    for f in dataclasses.fields(cls):
        no_default = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        require(not no_default or f.name in values, f"{where}.{f.name} is missing; it has no default.")
    arguments = {key: _convert(hints[key], values[key], f"{where}.{key}") for key in values}
    try:
        return cls(**arguments)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def complete(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping with every default written out, so that each setting can be overridden by its name."""
    return dataclasses.asdict(build(cls, values))


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _convert(next(a for a in args if a is not type(None)), value, where)
    if origin is Literal:
        require(value in args, f"{where}={value!r} is not allowed; choose one of {', '.join(map(repr, args))}.")
        return value
    if origin is tuple:
        require(isinstance(value, (list, tuple)), f"{where}={value!r} must be a list.")
        fixed = len(args) == 2 and args[1] is not Ellipsis
        require(not fixed or len(value) == len(args), f"{where}={value!r} must have {len(args)} entries.")
        return tuple(_convert(args[i] if fixed else args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        require(isinstance(value, Mapping), f"{where}={value!r} must map names to values.")
        return {key: _convert(args[1], v, f"{where}.{key}") for key, v in value.items()}
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else build(hint, value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    require(
        isinstance(value, hint) and not (hint is not bool and isinstance(value, bool)),
        f"{where}={value!r} is a {type(value).__name__}; a {getattr(hint, '__name__', hint)} is needed.",
    )
    return value


def to_dict(config: Any) -> Any:
    """The config as plain JSON values; `build` makes the same config out of it."""
    if dataclasses.is_dataclass(config):
        return {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {key: to_dict(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return [to_dict(value) for value in config]
    return config
