"""The part of the config about training from a model: the model itself, fine-tuning, and downstream tasks."""

import dataclasses
from typing import TypeVar

T = TypeVar("T")


def field(default: T, help: str) -> T:
    """A field with its help text: what the value means, its unit and its choices."""
    return dataclasses.field(default=default, metadata={"help": help})


def setting(default: T, help: str) -> T:
    """A field that cannot change the result of a run, such as a path or an interval: not part of the fingerprint."""
    return dataclasses.field(default=default, metadata={"help": help, "affects_result": False})


@dataclasses.dataclass(unsafe_hash=True)
class Init:
    """The model that training starts from. The objective's own head is new, except for BERT's pooler."""

    run: str = setting("", "directory of a run, whose newest checkpoint gives the parameters; empty: random ones")
    run_sha256: str = field("", "expected SHA-256 of that checkpoint; empty: any (a run records what it found)")
    hub: str = setting("", "Hugging Face folder instead of a run, or hf:ORG/NAME to download it; empty: none")
    hub_sha256: str = field(
        "", "expected SHA-256 of that folder's config.json, weights and vocabulary; empty: any (a run records it)"
    )


@dataclasses.dataclass(unsafe_hash=True)
class Finetune:
    """What is fine-tuned, how fast, and what the task's head reads."""

    trainable_layers: int = field(
        -1,
        "which parameters are trained: -1: all | k: the last k layers and the heads | 0: the task's head alone (the "
        "model is frozen and has no dropout)",
    )
    layerwise_lr_decay: float = field(
        1.0, "factor of the learning rate from each layer to the one below it; 1: the same for all layers"
    )
    pooling: str = field(
        "first",
        "how an example becomes one vector: first (first token's state through a pooler, as BERT's [CLS]) | last (last "
        "token's state) | mean (mean over tokens)",
    )
    layer_features: str = field(
        "last",
        "which layers the head reads: last | second_to_last | a layer's number, 0 for the embeddings | concat4 (last "
        "four concatenated) | sum4 (learned weighted sum of the last four) | mix (of all but the embeddings)",
    )
    head: str = field("linear", "tagging: linear | bilstm (two BiLSTM layers below the linear one)")
    head_dim: int = field(768, "tagging with head bilstm: units of each direction")
    max_layer: int = field(
        -1, "edge_probing: the probe mixes layers 0 (embeddings) to this one; -1: up to the last layer"
    )


@dataclasses.dataclass(unsafe_hash=True)
class Downstream:
    """Tasks that the model is fine-tuned on when its training ends: a grid for each, selected on the dev split."""

    tasks: str = setting("", "tasks of mlm/data/tasks/tasks.py, separated by commas; empty: none")
    path: str = setting("", "folder with one folder of files for each task, of the task's name")
    learning_rates: tuple[float, ...] = setting(
        (), "learning rates to try; empty: those of mlm/training/run/finetuning_recipe.py for this size of model"
    )
    epochs: tuple[float, ...] = setting((3.0,), "numbers of epochs to try")
    batch_sizes: tuple[int, ...] = setting((32,), "batch sizes to try")
    seeds: int = setting(1, "number of random seeds for each point of the grid")
    variants: str = setting(
        "",
        "settings to compare, separated by commas, each a column of the table: fields as NAME=VALUE separated "
        "by spaces, such as finetune.trainable_layers=0; from_scratch: random initial parameters; empty: the plain "
        "recipe",
    )
