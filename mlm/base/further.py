"""Knobs of further training, a part of `config`: what a run starts from, and what it is fine-tuned for."""
import dataclasses


def setting(default, **kwargs):
    """A field that says where or how a run works and cannot change its result: left out of the fingerprint."""
    return dataclasses.field(default=default, metadata={"affects_result": False}, **kwargs)


@dataclasses.dataclass(unsafe_hash=True)
class Init:
    """What the first parameters of the model are; the objective's own head is drawn, but for BERT's pooler."""

    run: str = setting("")  # directory of the run whose newest checkpoint they are; empty: drawn
    run_sha256: str = ""  # SHA-256 of that checkpoint's state, which says what a run began with wherever
    #       that lies; empty: whatever is there
    hub: str = setting("")              # Hugging Face folder, in the place of a run; hf:ORG/NAME: one that
                                        #       huggingface_hub fetches
    hub_sha256: str = ""                   # SHA-256 of its config.json, tensors and vocabulary, as state is of a run's;
                                        #       empty: whatever is there


@dataclasses.dataclass(unsafe_hash=True)
class Finetune:
    trainable_layers: int = -1  # which of the model's parameters are trained: -1: all; k: those of its last k
    #       layers and what stands behind them; 0: none but the objective's head,
                                        #       and the model drops nothing
    layerwise_lr_decay: float = 1.0  # of the learning rate from a layer to the one before it; 1: the same for all
    pooling: str = "first"  # what a label of a row is told from: its first token's state, through a pooler
    #       (first), its last token's (last), or the mean of all its tokens' (mean)
    layer_features: str = "last"  # what of the model's layers labels are told from: last | second_to_last | a
    #       layer's number, 0 the embeddings | concat4, the last four side by side |
                                        #       sum4 | mix: learnt sums of the last four, and of all but the embeddings
    head: str = "linear"                # what tags are told by: linear | bilstm, two layers of it below a linear one
    head_dim: int = 768               # bilstm: units of each direction
    max_layer: int = -1                     # edge: last of the layers, from 0, that the probe may mix; -1: all


@dataclasses.dataclass(unsafe_hash=True)
class Downstream:
    """What a run is fine-tuned for once its training ended: a grid for each task, of which dev chooses."""

    tasks: str = setting("")            # rows of TASKS (mlm/data/tasks/tasks.py), separated by commas; empty: for none
    path: str = setting("")  # folder that holds, for each task with files, a folder of its name
    learning_rates: tuple[float, ...] = setting(
        ()
    )  # empty: those of mlm/train/finetuning_recipe.py for a model of this size
    epochs: tuple[float, ...] = setting((3.0,))  # passes over the task's train split
    batch_sizes: tuple[int, ...] = setting((32,))  # rows an update
    seeds: int = setting(1)             # fine-tunings of each point of the grid; those of another config.seed draw
                                        #       otherwise
    variants: str = setting("")  # what a fine-tuning may set beside, as NAME=VALUE and separated by spaces, such
    #       as finetune.trainable_layers=0, or from_scratch: with first parameters drawn, to
    #       compare with; between commas several, the recipe itself the empty one.
    #       Each is a column of its own, and not to choose from
