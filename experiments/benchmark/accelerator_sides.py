"""The sides that `--accelerator` measures, and their builders. Each has the devices to itself, in a process of its own.

Speeds, FLOPs and memory are those of one device. Ours uses all devices with the case's batch on each, PyTorch one.
"""

import functools
import importlib
import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from experiments.benchmark import (
    flax_rnn,
    generation,
    matmul_limit,
    mlm_step,
    peers,
    population,
    rnn,
    timing,
    transformer,
)
from mlm.base import config, fields
from mlm.models import platform_kernels

PLAIN, FSDP = {"model.kernels": platform_kernels.REFERENCE}, {"parallel.mode": "fsdp"}
OUR_CHANGES = {"": {}, "our plain formulas": PLAIN, "our FSDP": FSDP, "our FSDP, plain formulas": FSDP | PLAIN}
BERT = ("torch", "transformers")  # packages


class Scale(NamedTuple):
    """The shapes of all parts, and how long each side is timed."""

    matrix: int  # rows and columns
    transformers: tuple[transformer.BenchmarkCase, ...]
    classifier: transformer.BenchmarkCase
    lstm: tuple[int, str, int]  # width, dtype, rows
    gpt2: str
    populations: tuple[int, ...]
    population_rounds: int
    seconds: float
    min_rounds: int


FULL = Scale(
    8192,
    tuple(case for case in transformer.CASES["accelerator"] if not case.attention_dropout),
    transformer.BenchmarkCase("base", 32, 128, "bfloat16", attention_dropout=0.0),
    (1024, "bfloat16", 64),
    "small",
    population.SIZES,
    population.MIN_ROUNDS,
    3.0,
    timing.MIN_ROUNDS,
)
TINY = transformer.BenchmarkCase("tiny", 2, 32, "bfloat16", attention_dropout=0.0)
SMALLEST = Scale(256, (TINY,), TINY, (16, "float32", 2), "tiny", (2,), 1, 0.0, 2)


class Side(NamedTuple):
    """One of the implementations that a case compares."""

    part: str
    case: str
    name: str  # empty: ours at its defaults, with which the others are compared
    measure: Callable[[], list[dict]]
    packages: tuple[str, ...] = ()
    count_flops: Callable[[], float | None] | None = None  # of a call on one device
    min_devices: int = 1

    def __str__(self) -> str:
        return f"{self.part}: {self.case}, {self.name or 'ours'}"


def list_sides(scale: Scale) -> list[Side]:
    """All sides; of a case ours comes first."""
    return [
        *list_matmul_sides(scale),
        *(side for case in scale.transformers for side in list_transformer_sides(scale, case)),
        *list_finetuning_sides(scale),
        *list_lstm_sides(scale),
        *list_generation_sides(scale),
        Side("population", f"up to {max(scale.populations)} runs", "", functools.partial(measure_population, scale)),
    ]


def list_matmul_sides(scale: Scale) -> list[Side]:
    products = [(scale.matrix,) * 3]

    def make_side(name, packages, build, *arguments):
        case, flops = f"{scale.matrix} x {scale.matrix} bfloat16", matmul_limit.count_flops(products)
        build = functools.partial(build, products, "bfloat16", *arguments)
        measure = functools.partial(measure_call, scale, case, name, "GFLOP/s", flops / 1e9, build)
        return Side("matmul", case, name, measure, packages, lambda: flops)

    return [
        make_side("", (), matmul_limit.build_jax_side, "bfloat16"),
        make_side("PyTorch", ("torch",), matmul_limit.build_torch_side),
    ]


def make_step_side(
    scale: Scale, part: str, case: str, cfg: config.Config, name: str, build: Callable, packages: tuple[str, ...] = ()
) -> Side:
    row = case, name, "tokens/s", mlm_step.count_tokens(cfg)
    measure = functools.partial(measure_call, scale, *row, build)
    return Side(part, case, name, measure, packages, functools.partial(mlm_step.count_flops, cfg))


def list_transformer_sides(scale: Scale, case: transformer.BenchmarkCase) -> list[Side]:
    cfg = case.make_config()
    make_side = functools.partial(make_step_side, scale, "transformer", str(case), cfg)
    ours = [
        make_side(name, make_our_build(cfg, changes))._replace(min_devices=2 if "parallel.mode" in changes else 1)
        for name, changes in OUR_CHANGES.items()
    ]
    return ours + [make_side(*peer) for peer in list_bert_peers("build_tuned_step", cfg)]


def list_finetuning_sides(scale: Scale) -> list[Side]:
    """A classifier of two classes."""
    cfg = scale.classifier.make_config()
    task = {"objective": "classification", "data.corpus": "task", "data.task": "topic", "data.labelled.labels": "0,1"}
    task_cfg = fields.override(cfg, task)  # its data and its tokenizer do not exist, so that it is not checked
    make_side = functools.partial(make_step_side, scale, "finetuning", str(scale.classifier), task_cfg)
    return [make_side("", make_our_build(task_cfg, {}))] + [
        make_side(*peer) for peer in list_bert_peers("build_classifier_step", cfg)
    ]


def list_bert_peers(build: str, cfg: config.Config) -> list[tuple[str, Callable, tuple[str, ...]]]:
    """Names, builders and packages; build: a function of bert.py."""
    settings = peers.list_settings(attention=("sdpa", "flash"), compiled=(False, True))
    packages = dict.fromkeys(settings, BERT) | {peers.PeerSetting("flash_attention_2"): (*BERT, "flash_attn")}
    return [
        (f"transformers ({setting})", make_torch_build(f"bert.{build}", cfg, setting), packages[setting])
        for setting in packages
    ]


def list_lstm_sides(scale: Scale) -> list[Side]:
    width, dtype, rows = scale.lstm
    cfg = rnn.make_config("lstm", width, dtype, rows)
    case = f"width {width}, {rows} x {cfg.pack.seq_len} {dtype}"
    make_side = functools.partial(make_step_side, scale, "lstm", case, cfg)
    return [
        make_side("", make_our_build(cfg, {})),
        make_side("our plain formulas", make_our_build(cfg, PLAIN)),
        *(
            make_side(
                f"torch.nn.LSTM ({setting})", make_torch_build("torch_rnn.build_tuned_step", cfg, setting), BERT[:1]
            )
            for setting in peers.list_settings(compiled=(False, True))
        ),
        make_side(rnn.FLAX, functools.partial(flax_rnn.build_step, cfg)),
    ]


def list_generation_sides(scale: Scale) -> list[Side]:
    case = f"GPT-2 {scale.gpt2}, {generation.NUM_PROMPTS} texts of {generation.LENGTH} tokens"
    work = generation.NUM_PROMPTS * (generation.LENGTH - generation.PROMPT_LENGTH)

    def make_side(name, packages, *job):
        build = functools.partial(build_generation, scale.gpt2, *job)
        measure = functools.partial(measure_call, scale, case, name, "tokens/s", work, build)
        return Side("generation", case, name, measure, packages)

    return [make_side("", (), generation.generate_with_mlm)] + [
        make_side(f"transformers' generate, {option}", BERT, generation.generate_with_transformers, option)
        for option in generation.PEER_OPTIONS
    ]


def make_our_build(cfg: config.Config, changes: dict) -> Callable:
    return functools.partial(build_our_step, fields.override(cfg, changes))


def build_our_step(cfg: config.Config) -> tuple[Callable[[], None], float]:
    """The step on all devices, with the config's batch on each, and the bytes that the compiler plans for each."""
    devices = jax.devices()
    cfg = fields.override(cfg, {"train.batch_size": cfg.train.batch_size * len(devices)})
    step, step_cost = mlm_step.build_sharded_step(cfg, devices)
    return step, step_cost.memory


def make_torch_build(name: str, *arguments) -> Callable[[], Callable[[], object]]:
    """The builder of a module that imports PyTorch, by MODULE.FUNCTION; the side's process alone imports it."""
    return functools.partial(_import_and_call, name, *arguments)


def _import_and_call(name, *arguments):
    module, _, function = name.partition(".")
    return getattr(importlib.import_module(f"experiments.benchmark.{module}"), function)(*arguments)


def build_generation(size: str, generate: Callable, *options: str) -> Callable[[], object]:
    """`generate` of a GPT-2, which it has loaded when this returns."""
    with tempfile.TemporaryDirectory() as folder:
        generation.prepare_model(folder, size)
        generate(folder, *options)
    return functools.partial(generate, folder, *options)


def measure_call(scale: Scale, case: str, name: str, unit: str, work: float, build: Callable) -> list[dict]:
    """The row of a side. build: returns a function to time, or a tuple of it and the bytes that its compiler plans."""
    built = build()
    call, planned = built if isinstance(built, tuple) else (built, None)
    seconds_R = timing.measure_times({name: call}, scale.seconds, min_rounds=scale.min_rounds)[name]
    row = timing.make_row(case, unit, seconds_R, work=work)
    if name:
        row |= {"ours": None, "peer": row["ours"], "peer_name": name}
    return [row | {"seconds": float(np.median(seconds_R)), "planned": planned, "measured": read_peak_memory()}]


def read_peak_memory() -> int | None:
    """The most bytes of its first device that this process held at once: PyTorch if it is in use, else JAX."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def measure_population(scale: Scale) -> list[dict]:
    return list(population.measure(scale.populations, scale.seconds, scale.population_rounds))


def measure_with_packages(packages: tuple[str, ...], measure: Callable[[], list[dict]]) -> dict:
    """{"rows": measure()}, or {"missing": reason} where a package is missing or PyTorch lacks JAX's device."""
    missing = peers.find_missing(*packages)
    return {"missing": missing} if missing else {"rows": measure()}
