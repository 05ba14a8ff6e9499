"""Kernels without their device: their bodies run by an interpreter."""

import functools
import inspect
from types import ModuleType, SimpleNamespace


def interpreted(module: ModuleType, interpret: object = True) -> SimpleNamespace:
    """A kernel's module with `interpret` bound in all of its functions that take it."""
    functions = {name: value for name, value in vars(module).items() if inspect.isfunction(value)}
    return SimpleNamespace(
        **{
            name: functools.partial(function, interpret=interpret)
            for name, function in functions.items()
            if "interpret" in inspect.signature(function).parameters
        }
    )
