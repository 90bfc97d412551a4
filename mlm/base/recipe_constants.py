"""Numbers that more than one recipe has: the defaults, those of experiments over sizes, and the papers'."""

# Small models: the defaults of widths up to 128, found by the trials of experiments/architectures.py on the built-in
# language and, for learning rate and warm-up, by those of experiments/default_recipe.py on text.
SMALL_DROPOUT = 0.0
SMALL_INIT_STD = 0.08
SMALL_POSITIONS = "rotary"
SMALL_LEARNING_RATE = 4e-3
SMALL_LEARNING_RATES = {"gru": 8e-3, "lstm": 8e-3}  # by cell; SMALL_LEARNING_RATE for the others
WINDOW_NEIGHBORS = 5  # that window models see on each side, and that the window floor is of
SMALL_WARMUP_FRACTIONS = {"transformer": 0.2}  # by family; WARMUP_FRACTION for the others
GATE_MEMORY = 128  # model.chrono_init: longest memory, in tokens, of a gated cell's initial gates

# Devlin et al. 2019, appendix A.2: the defaults of larger widths.
BERT_DROPOUT = 0.1
BERT_INIT_STD = 0.02
WARMUP_FRACTION = 0.06  # Wettig et al. 2022

MIN_REALISED_RATE = 0.9  # of the masking rate; a run that masks less is named
