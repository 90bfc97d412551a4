"""The peers that this machine has, and the choice of their fastest settings."""

import importlib.util
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import jax
import numpy as np

from experiments.benchmark import timing

PACKAGES = {"flash_attn": "flash-attn"}  # of modules that no extra installs, since it takes a GPU to install them


class PeerSetting(NamedTuple):
    """How a PyTorch network is run."""

    attention: str = ""  # sdpa | eager | flash_attention_2 (transformers), flash (bert.py); empty: no attention
    compiled: bool = False  # forward pass and loss by torch.compile
    recurrence: str = ""  # dtype of the recurrence; empty: as the rest

    def __str__(self) -> str:
        return ", ".join(
            filter(
                None,
                [
                    self.attention,
                    "compiled" if self.compiled else "not compiled",
                    self.recurrence and f"{self.recurrence} recurrence",
                ],
            )
        )


def find_missing(*packages: str) -> str:
    """The reason why peers that need these packages cannot run; empty if they can."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed (pip install {PACKAGES.get(package, '-e .[bench]')})"
    if "torch" in packages and jax.default_backend() != "cpu":
        import torch

        if jax.default_backend() != "gpu" or not torch.cuda.is_available():
            return f"torch sees no device like JAX's {jax.devices()[0].device_kind}"
    return ""


def list_settings(**choices: Iterable) -> list[PeerSetting]:
    """All combinations of the named fields' values."""
    return [PeerSetting(**dict(zip(choices, values, strict=True))) for values in itertools.product(*choices.values())]


def start_sides(
    candidates: Iterable[PeerSetting], build: Callable[[PeerSetting], Callable[[], object]]
) -> dict[PeerSetting, Callable[[], object]]:
    """Builds and runs a step with each setting; prints and skips a setting that fails.

    Raises RuntimeError if all fail.
    """
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


def build_sides(
    name: str, setting: PeerSetting, try_compiled: bool, build: Callable[[PeerSetting], Callable[[], object]]
) -> dict[str, Callable[[], object]]:
    """The sides of a peer without torch.compile and, if `try_compiled`, with it."""
    candidates = [setting, setting._replace(compiled=True)][: 1 + try_compiled]
    return {f"{name} ({setting})": step for setting, step in start_sides(candidates, build).items()}


def is_compiled_fastest(times: Mapping[str, np.ndarray]) -> bool:
    """Whether the fastest PyTorch side is a compiled one."""
    medians = {name: np.median(side_R) for name, side_R in times.items() if "compiled" in name}
    return bool(medians) and "not compiled" not in min(medians, key=medians.get)


def choose_setting(
    candidates: Iterable[PeerSetting], build: Callable[[PeerSetting], Callable[[], object]]
) -> PeerSetting:
    """The setting with the fastest step in a short trial."""
    times = timing.measure_times(start_sides(candidates, build), seconds=0, min_rounds=3, warm_up=1)
    for setting, side_R in times.items():
        print(f"  trial: {setting}: {1e3 * np.median(side_R):,.1f} ms", flush=True)
    return min(times, key=lambda setting: np.median(times[setting]))
