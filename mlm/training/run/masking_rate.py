"""The masking rate that whole words and spans can have, known before a run trains."""

import functools

import jax
import numpy as np

from mlm.base import config
from mlm.base.recipe_constants import MIN_REALISED_RATE
from mlm.data.rows.pack import PackedDataset
from mlm.objectives import masking, masking_units
from mlm.training.step import program, update

NUM_EXAMPLES = 512  # of the train split


def describe_shortfall(cfg: config.Config, packed: PackedDataset) -> str:
    """What to say where masks have less than MIN_REALISED_RATE of the tokens that the rate asks for; else ""."""
    unit = masking_units.build_unit(program.make_static_config(cfg), packed.dataset_info)
    if unit is None:
        return ""
    ids_BxL = np.asarray(packed.train["ids"][:NUM_EXAMPLES], np.int32)
    num_slots = masking.count_slots(cfg.mask.max_rate, ids_BxL.shape[1], unit)
    settings = {"num_slots": num_slots, "cdf_V": np.ones(1), "mask_unk": cfg.mask.mask_unk, "unit": unit}
    sample_masks = functools.partial(masking.sample_masks, **settings)
    key_B = update.make_example_keys(np.uint32(cfg.seed), 0, np.arange(len(ids_BxL)))
    masked, _ = jax.jit(sample_masks)(key_B, ids_BxL, program.make_train_hparams(cfg))
    rate = float(masked.num_corrupted_B.sum() / max(1, masked.num_eligible_B.sum()))
    if rate >= MIN_REALISED_RATE * cfg.mask.rate:
        return ""
    return (
        f"config.mask.unit = {cfg.mask.unit}: masks have {rate:.3f} of the tokens, not config.mask.rate = "
        f"{cfg.mask.rate:g}, since words have too many. In a script without spaces a text is one word: a segmenter can "
        "put data.word_separator between words; else a larger vocabulary, or mask.unit=token, reaches the rate"
    )
