"""What every command shares: a config from the command line, and one sentence with exit code 2 for a user's mistake."""

import os
import re
import sys
from collections.abc import Callable

from absl import flags
from ml_collections import config_flags

from cascade_jax.config import CascadeConfig, ConfigError, build
from cascade_jax.peers import MISTAKE, RESTART, LostPeer

MISTAKES = (ConfigError, FileNotFoundError, flags.Error)


def guarded(main: Callable[[], int]) -> None:
    """Run `main` and exit: with its code, with 2 and the sentence of a user's mistake, 75 where a peer is missing."""
    try:
        code = main()
    except MISTAKES as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        code = MISTAKE
    except LostPeer as error:
        print(f"error: {' '.join(str(error).split())} Start all of them again.", file=sys.stderr)
        code = RESTART
    sys.exit(code)


def define_config() -> flags.FlagHolder:
    """--config=FILE.py, and --config.NAME=VALUE for every setting in it."""
    return config_flags.DEFINE_config_file(
        "config", None, "A Python file with get_config(), e.g. configs/tiny_cascade.py."
    )


def parse(argv: list[str]) -> list[str]:
    """Fill absl's flags; what is left over are the positional arguments. flags.Error says what is wrong with them."""
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        name, given, value = argument.partition("=")
        path = (value if given else following).partition(":")[0]
        if name == "--config" and path and not os.path.isfile(path):
            raise FileNotFoundError(
                f"there is no config file {path!r}; give one with get_config(), e.g. from configs/."
            )
    try:
        return flags.FLAGS(argv)[1:]
    except flags.Error as error:
        first: BaseException = error
        while first.__context__ is not None:
            first = first.__context__
        # What get_config() itself refuses arrives in two wrappings, with a stack trace for a message.
        raise first if isinstance(first, ConfigError) else error from None
    except (AttributeError, KeyError, TypeError, ValueError, SyntaxError, ImportError) as error:
        # ml_collections loads the file and sets the overrides while flags are parsed.
        raise ConfigError(_unknown_setting(error, argv) or _at_fault(error)) from error


def _unknown_setting(error: Exception, argv: list[str]) -> str | None:
    """The sentence for a setting that there is not: ml_collections gives its name, quoted, and perhaps a better one."""
    found = re.fullmatch(r"""'(.+?)'(?:\nDid you mean "(.+?)" .*)?""", str(_reason(error)))
    if found is None:
        return None
    name, better = found.groups()
    for flag in (argument.partition("=")[0] for argument in argv):
        if flag.startswith("--config.") and name in flag.split("."):
            hint = f"did you mean {better}?" if better else "see --help for where settings are listed."
            return f"{flag}: {name} is not a setting; {hint}"
    return None


def _at_fault(error: Exception) -> str:
    return f"the command line or the config file is at fault: {str(_reason(error)).rstrip('.')}."


def _reason(error: Exception) -> object:
    """What an error was raised with; ml_collections raises an AttributeError with a KeyError in it."""
    reason = error.args[0] if error.args else type(error).__name__
    return _reason(reason) if isinstance(reason, Exception) else reason


def cascade_config(holder: flags.FlagHolder) -> CascadeConfig:
    """The checked config of --config."""
    if holder.value is None:
        raise ConfigError(
            "--config is missing; give a Python file with get_config(), e.g. --config=configs/tiny_cascade.py."
        )
    return build(CascadeConfig, holder.value.to_dict())
