"""Which peers this machine has, and which of their settings is the fastest for a case."""
import importlib.util
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import jax
import numpy as np

from experiments.benchmark import timing


class Setting(NamedTuple):
    """How an expert runs a PyTorch network."""

    attention: str = ""         # sdpa | eager; empty: a net without attention
    compiled: bool = False      # by torch.compile, the whole of forward pass and loss
    recurrence: str = ""        # its dtype where that is not the rest's

    def __str__(self) -> str:
        return ", ".join(filter(None, [self.attention, "compiled" if self.compiled else "not compiled",
                                       self.recurrence and f"{self.recurrence} recurrence"]))


def absent(*packages: str) -> str:
    """Why the peers made of these packages are left out; empty where they are not."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed (pip install -e .[bench])"
    if "torch" in packages and jax.default_backend() != "cpu":
        import torch

        if jax.default_backend() != "gpu" or not torch.cuda.is_available():
            return f"torch sees no device like JAX's {jax.devices()[0].device_kind}"
    return ""


def settings(**choices: Iterable) -> list[Setting]:
    """Every combination of the named fields' values."""
    return [Setting(**dict(zip(choices, values, strict=True))) for values in itertools.product(*choices.values())]


def started(candidates: Iterable[Setting], build: Callable[[Setting], Callable[[], object]]
            ) -> dict[Setting, Callable[[], object]]:
    """The steps of these settings, each made once; one that fails is left out with a line. Raises RuntimeError where
    all do."""
    steps = {}
    for setting in candidates:
        try:
            step = build(setting)
            step()
            steps[setting] = step
        except Exception as error:
            print(f"  {setting}: left out ({type(error).__name__}: {str(error).splitlines()[0][:100]})")
    if not steps:
        raise RuntimeError("no setting of the peer works")
    return steps


def as_it_is_and_compiled(name: str, setting: Setting, compiling: bool, build: Callable[[Setting], Callable[[], object]]
                          ) -> dict[str, Callable[[], object]]:
    """The sides of a peer without torch.compile and, if `compiling`, with it."""
    candidates = [setting, setting._replace(compiled=True)][: 1 + compiling]
    return {f"{name} ({setting})": step for setting, step in started(candidates, build).items()}


def compiled(times: Mapping[str, np.ndarray]) -> bool:
    """Whether the fastest of these sides by PyTorch is a compiled one."""
    medians = {name: np.median(side_R) for name, side_R in times.items() if "compiled" in name}
    return bool(medians) and "not compiled" not in min(medians, key=medians.get)


def best(candidates: Iterable[Setting], build: Callable[[Setting], Callable[[], object]]) -> Setting:
    """The setting whose step takes the least time in a short trial."""
    times = timing.measure(started(candidates, build), seconds=0, least=3, warm_up=1)
    for setting, side_R in times.items():
        print(f"  trial: {setting}: {1e3 * np.median(side_R):,.1f} ms", flush=True)
    return min(times, key=lambda setting: np.median(times[setting]))
