"""Small members of every family and small batches, for the tests to share."""

import functools
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from mlm.base import config, errors, fields, types
from mlm.data.rows import pack
from mlm.inference.forward_passes import make_tokens
from mlm.models import MODELS
from mlm.objectives import OBJECTIVES
from mlm.training.run import finetuning_recipe, hooks, loop, resolution
from mlm.training.step import program

ROOT = Path(__file__).parents[1]
VOCAB = 50
LABELLED = {
    "classification": ("label_B",),
    "regression": ("value_B",),
    "multiple_choice": ("label_B",),
    "tagging": ("tag_BxL",),
    "extractive_qa": ("start_B", "end_B", "passage_B", "first_B", "example_B"),
    "edge_probing": ("edge_BxL", "from_BxL", "to_BxL", "other_from_BxL", "other_to_BxL"),
    "contrastive": (),
}  # objectives' labels
CLASSES = ("O", "B-X", "I-X")
ENDINGS = ("0", "1", "2", "3")  # of a row of 16 tokens each has 4
SOURCED = [
    name for name, goal in OBJECTIVES.items() if goal.makes_source
]  # for models that read a source: not FAMILY_CELLS
# Those whose rows the built-in language's text can fill, and whose floor on it is known.
ON_LANGUAGE = sorted({*OBJECTIVES} - {"nsp", "replaced_token_detection", *LABELLED, *SOURCED})
ABOVE_STATES = ("hybrid", "diffusion")  # objectives of which all that is their own is done above a model's states
# Every (family, cell) of an encoder; the cell is "" in a family without cells.
FAMILY_CELLS = [(family, cell) for family, of in MODELS.items() if not of.reads_source for cell in of.cells or ("",)]
# A member of each family that stands for others in the suite; mixers are a part of it by VARIANTS, else with --all.
ONE_EACH = list({family: (family, cell) for family, cell in reversed(FAMILY_CELLS) if family != "mixer"}.values())
# Those that can see one side alone, which a Fourier transform cannot.
ONE_SIDED = [member for member in FAMILY_CELLS if member != ("mixer", "fnet")]
ALL_MEMBERS = pytest.mark.parametrize(
    ("family", "cell"), FAMILY_CELLS, ids=["-".join(filter(None, member)) for member in FAMILY_CELLS]
)


def mark_further(cases, kept):
    """Cases as parameters; those that are not among the kept ones run with --all alone."""
    marks = {True: (), False: pytest.mark.exhaustive}
    return [pytest.param(*case, marks=marks[case in kept]) for case in cases]


# Every member, where a family's first stands for the others in the suite.
MEMBERS = pytest.mark.parametrize(("family", "cell"), mark_further(FAMILY_CELLS, ONE_EACH))
ONE_SIDED_MEMBERS = pytest.mark.parametrize(("family", "cell"), mark_further(ONE_SIDED, ONE_EACH))
# Members with blocks that are not the default, each block in one of them: (family, cell, changes).
VARIANTS = {
    "modern_bert": (
        "transformer",
        "",
        {
            "model__positions": "rotary",
            "model__rope_theta": 1000.0,
            "model__rope_scaling": "yarn",
            "model__rope_factor": 4.0,
            "model__rope_original_len": 16,
            "model__local_rope_theta": 50.0,
            "model__local_window": 4,
            "model__global_every": 2,
            "model__first_norm": False,
            "model__activation": "geglu",
            "model__bias": "output",
        },
    ),
    "sandwich": (
        "transformer",
        "",
        {
            "model__positions": "relative",
            "model__norm": "rmsnorm",
            "model__norm_placement": "sandwich",
            "model__activation": "swiglu",
            "model__qk_norm": True,
            "model__attention_gate": True,
            "model__layer_scale": 0.5,
            "model__embedding_dim": 8,
            "model__lm_head": "linear",
            "model__bias": "norms",
        },
    ),
    "disentangled": (
        "transformer",
        "",
        {"model__positions": "disentangled", "model__position_buckets": 8, "model__num_unique_layers": 1},
    ),
    "alibi": (
        "transformer",
        "",
        {
            "model__positions": "alibi",
            "model__relative_bias": True,
            "model__norm_placement": "post",
            "model__activation": "relu2",
            "model__local_window": 6,
            "model__global_layers": (2,),
            "model__depth_scaled_init": True,
            "model__embedding_dim": 8,
            "model__bias": "none",
        },
    ),
    "lstm": (
        "rnn",
        "lstm",
        {
            "model__norm": "rmsnorm",
            "model__norm_placement": "sandwich",
            "model__first_norm": False,
            "model__layer_scale": 0.5,
            "model__bias": "none",
        },
    ),
    "gru": ("rnn", "gru", {"model__norm_placement": "post", "model__bias": "output", "model__embedding_dim": 8}),
    "elman": ("rnn", "elman", {"model__tie_embeddings": False, "model__bias": "none", "model__embed_norm": False}),
    "window": (
        "feedforward",
        "window",
        {
            "model__norm_placement": "sandwich",
            "model__activation": "swiglu",
            "model__bias": "norms",
            "model__lm_head_activation": "relu",
            "model__type_vocab_size": 0,
        },
    ),
}
VARIANTS |= {
    "conv": ("mixer", "conv", {"model__norm_placement": "sandwich", "model__first_norm": False}),
    "gmlp": ("mixer", "gmlp", {"model__bias": "none", "model__norm": "rmsnorm"}),
    "fnet": ("mixer", "fnet", {"model__norm_placement": "post"}),
}
PLAIN = {"model__dropout": 0.0, "model__attention_dropout": 0.0}


def small_config(family="transformer", cell="", **changes) -> config.Config:
    """A config of a member with a few thousand parameters; changes by dotted name with __ for the dots.

    What the member does not read of them is left out, so that one set of changes serves all.
    """
    base = {
        "model.num_layers": 2,
        "model.width": 16,
        "model.mlp_dim": 24,
        "model.rnn_dim": 24,
        "model.state_dim": 8,
        "model.init_std": 0.0,
        "model.dropout": 0.1,
        "model.attention_dropout": 0.1,
        "model.positions": "learned",
        "model.chrono_init": 0,
        "optim.learning_rate": 1e-3,
        "pack.seq_len": 16,
        "model.family": family,
        "model.cell": cell,
    }
    if family in ("transformer", "encoder_decoder"):
        base |= {"model.num_heads": 2, "model.max_positions": 32}
    if family == "feedforward":
        base["model.window"] = 3
    if changes.get("objective") == "nsp":
        base["pack.mode"] = "segment_pair"
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    cfg = fields.override(config.Config(), base | changes)
    unread = {name: fields.DEFAULT[name] for name in resolution.find_unread_settings(cfg)}
    cfg = fields.override(cfg, unread)
    return resolution.derive_fields(cfg, fields.find_changes(cfg))  # unchecked: some are of no run


def read_example(title: str) -> dict[str, list[str]]:
    """The lines, before and after, that the example of a section of docs/extending.md has of each file."""
    pages = re.split("^## ", (ROOT / "docs/extending.md").read_text(), flags=re.MULTILINE)
    (page,) = (page for page in pages if page.startswith(f"{title}\n"))
    _, *parts = re.split(r"^--- (.*)\n", re.findall(r"```diff\n(.*?)```", page, re.DOTALL)[0], flags=re.MULTILINE)
    sides = [["".join(re.findall(rf"^[ {sign}](.*\n)", part, re.MULTILINE)) for sign in "-+"] for part in parts[1::2]]
    return dict(zip(parts[::2], sides, strict=True))


def prepare_finetuning(run, changes, **options) -> tuple[config.Config, pack.PackedDataset]:
    """The config and the data of a fine-tuning of a run; changes by dotted name."""
    layers = [fields.Layer("override", changes)]
    resolved, packed = finetuning_recipe.prepare_finetuning(run, layers, **options)
    return resolved.config, packed


def drawn_config(cache, family="transformer", cell="", **changes) -> config.Config:
    """As small_config, on a few short documents of the built-in language, packed under `cache`."""
    base = {
        "data__corpus": "language",
        "data__cache_dir": str(cache),
        "data__language__train_documents": 300,
        "data__language__validation_documents": 80,
        "pack__seq_len": 32,
    }
    return small_config(family, cell, **base | changes)


def make_run_config(cache, workdir, family="feedforward", cell="bag", **changes) -> config.Config:
    """As drawn_config, a run of six steps; where its member does not matter, tests of many files share its program."""
    base = {
        "model__num_layers": 1,
        "train__steps": 6,
        "train__batch_size": 8,
        "train__checkpoint_every": 2,
        "train__log_every": 2,
        "eval__batch_size": 8,
        "workdir": str(workdir),
    }
    return drawn_config(cache, family, cell, **base | changes)


def make_scheduled_config(cache, workdir, **changes) -> config.Config:
    """As make_run_config, of eight steps and by a schedule under which a run can be extended."""
    base = {
        "train__steps": 8,
        "train__checkpoint_every": 3,
        "train__log_every": 4,
        "optim__schedule": "wsd",
        "optim__warmup_fraction": 0.3,
        "model__dropout": 0.1,
    } | changes
    if base["optim__schedule"] == "wsd":
        base = {"optim__decay_fraction": 0.5, "optim__final_lr_fraction": 0.1} | base
    return make_run_config(cache, workdir, **base)


def make_dataset_info(cfg, counts_V=None) -> types.DatasetInfo:
    """Rows over VOCAB tokens, each entry as frequent as its number says where no counts are given."""
    counts_V = np.arange(VOCAB) if counts_V is None else counts_V
    labels = LABELLED.get(cfg.objective, ("next_B",) if cfg.pack.mode == "segment_pair" else ())
    classes = ENDINGS if cfg.objective == "multiple_choice" else CLASSES
    shares = (classes, np.arange(len(classes)).tobytes()) if {*labels} & {"label_B", "tag_BxL", "edge_BxL"} else ()
    return types.DatasetInfo(len(counts_V), cfg.pack.seq_len, labels, np.asarray(counts_V, np.int64).tobytes(), *shares)


def small_program(cfg, devices=1) -> program.Program:
    """The program of a config over VOCAB tokens, on so many devices."""
    return program.build_program(cfg, make_dataset_info(cfg), jax.devices()[:devices])


def params_of(shapes, std=0.25):
    """Parameters of no special values, no bias left at zero, as numpy draws them: to draw them as a run does would be
    one more program to compile.
    """
    rng = np.random.default_rng(0)
    return jax.tree_util.tree_map_with_path(
        lambda path, x: (path[-1].key == "scale") + std * rng.normal(size=x.shape).astype(np.float32), shapes
    )


def state_of(shapes, std=0.25) -> types.TrainState:
    """A state at step 0 with such parameters."""
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    return zeros._replace(params=params_of(shapes.params, std))


@functools.lru_cache
def build(cfg):
    """The model of a config over VOCAB tokens, its parameters as `params_of` draws them, and its compiled logits."""
    model = MODELS[cfg.model.family].build(cfg.model, VOCAB)
    params = params_of(jax.eval_shape(model.init, jax.random.key(0)))
    return model, params, jax.jit(lambda text: model.logits(params, model.encode(params, text)[0]))


@functools.partial(jax.jit, static_argnums=0)
def _compute_states_and_logits(model, params, ids_BxL, read):
    states = model.encode(params, make_tokens(ids_BxL), **read)[0]
    return states, model.logits(params, states)


def read_alone(model: types.Model, params, ids, length: int, **read) -> tuple[np.ndarray, np.ndarray]:
    """h_LxD and logits_LxV of one sequence of token ids, padded to `length`: one program reads those of all lengths."""
    ids_BxL = np.array([[*ids, *[0] * (length - len(ids))]], np.int32)
    states, logits = jax.device_get(_compute_states_and_logits(model, params, ids_BxL, read))
    return states[0, : len(ids)], logits[0, : len(ids)]


def batch(rows=3, length=16, seed=0, pad=3, labels=False) -> types.Batch:
    """Rows of two segments, seven and six tokens long with [CLS] first and [SEP] last, then `pad` tokens of padding."""
    rng = np.random.default_rng(seed)
    first = (length - pad) // 2 + (length - pad) % 2
    segments = np.repeat([1, 2, 0], [first, length - pad - first, pad]).astype(np.int32)
    positions = np.concatenate([np.arange(first), np.arange(length - pad - first), np.zeros(pad)]).astype(np.int32)
    ids = rng.integers(5, VOCAB, (rows, length)).astype(np.int32)
    ids[:, 0], ids[:, first - 1], ids[:, length - pad - 1] = 2, 3, 3
    ids[:, length - pad :] = 0
    tile = lambda x: np.tile(x, (rows, 1))
    brought = {
        "next_B": np.zeros(rows, np.int32),
        "label_B": rng.integers(0, len(CLASSES), rows).astype(np.int32),
        "value_B": rng.normal(size=rows).astype(np.float32),
        "tag_BxL": rng.integers(-1, len(CLASSES), (rows, length)).astype(np.int32),
        "start_B": rng.integers(0, 5, rows).astype(np.int32),
        "end_B": rng.integers(5, 10, rows).astype(np.int32),
        "passage_B": np.full(rows, first, np.int32),
        "first_B": np.zeros(rows, np.int32),
        "example_B": np.arange(rows, dtype=np.int32) // 2,
    }
    for name, place in (("from", 1), ("to", 2), ("other_from", 4), ("other_to", 4)):
        brought[f"{name}_BxL"] = np.full((rows, length), place, np.int32)
    brought["edge_BxL"] = np.where(np.arange(length) < 6, brought["tag_BxL"], -1).astype(np.int32)
    return types.Batch(
        types.Tokens(ids, tile(segments), tile(positions), np.zeros_like(ids)),
        brought if labels else {},
        np.arange(rows, dtype=np.int32),
    )


def environment(devices=1, **more) -> dict[str, str]:
    """Of a process that a test starts: it compiles as quickly as this one, for so many simulated devices."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return os.environ | {"XLA_FLAGS": flags} | more


def run_mlm(*words, given: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the mlm command in a process of its own, in the checkout's folder.

    given: its standard input; variables: of its environment.
    """
    return subprocess.run(
        [sys.executable, "-m", "mlm", *map(str, words)],
        input=given,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
        env=environment(**variables),
        timeout=300,
    )


def get_refusal(call: Callable, *args, **settings) -> str:
    """The one line in which a call refuses its arguments."""
    with pytest.raises(errors.ConfigError) as error:
        call(*args, **settings)
    line = str(error.value)
    assert "\n" not in line and len(line) < 1500
    return line


def train_config(cfg: config.Config) -> dict:
    """Checks a config, loads its data and trains its run; returns the result."""
    loop.check(cfg)
    return loop.train(cfg, pack.load_dataset(cfg))


def stop_at(cfg: config.Config, step: int) -> None:
    """Trains up to a step, where the run is asked to stop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hooks.Preemption, "is_requested", lambda self, checkpoints, number: number == step)
        with pytest.raises(errors.RunStopped):
            train_config(cfg)


@functools.cache
def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file of tests/fixtures."""
    with np.load(path) as file:
        return dict(file)


def make_letters_config(folder: Path, name: str, **changes) -> config.Config:
    """A run of a small model in folder/name on text of eight letters, as words, that is written where there is none."""
    text = folder / "text.txt"
    if not text.exists():
        rng = random.Random(0)
        text.write_text("\n".join(" ".join(rng.choices("abcdefgh", k=30)) for _ in range(80)))
    base = {
        "model__num_layers": 1,
        "train__batch_size": 4,
        "train__log_every": 1,
        "train__checkpoint_every": 5,
        "eval__batch_size": 8,
        "eval__max_examples": 8,
        "workdir": str(folder / name),
        "data__path": str(text),
        "data__document_boundary": "line",
        "data__cache_dir": str(folder / "cache"),
        "tokenizer__kind": "words",
        "tokenizer__vocab_size": 12,
    }
    return small_config("feedforward", "bag", **base | changes)


def make_task_fields(folder: Path, tokenizer: Path | str, **labelled: str) -> dict[str, str]:
    """The fields of a task whose files and cache are in a folder; labelled: those of config.data.labelled."""
    places = {"data.task_path": str(folder), "data.cache_dir": str(folder / "cache"), "tokenizer.path": str(tokenizer)}
    return {"data.task": "own"} | places | {f"data.labelled.{name}": value for name, value in labelled.items()}


def replace_text(rows: types.Batch, **changes) -> types.Batch:
    """The batch with some arrays of its text replaced."""
    return rows._replace(text=rows.text._replace(**changes))
