"""The fields that a config inherits from the run or the Hugging Face folder that its parameters start from."""

from collections.abc import Mapping
from typing import Any

from mlm import objectives
from mlm.base import conditional_fields, config, errors, fields, files
from mlm.data.tasks import tasks
from mlm.data.text import corpus
from mlm.data.tokenizers import kinds
from mlm.objectives import distillation
from mlm.training.run import checkpoint, pretrained_folder
from mlm.training.run.directory import CHECKPOINT_SCHEMES, RunDirectory

TEACHER = "distillation.teacher"
SOURCES = ("init.run", "init.hub", TEACHER)
# Fields of a model that may differ from its source's: no parameter depends on them.
FREE_FIELDS = (
    *("model.dropout", "model.attention_dropout", "model.init_std", "model.depth_scaled_init", "model.chrono_init"),
    *("model.rope_theta", "model.local_rope_theta"),  # ModernBERT raises them
    *("model.rope_scaling", "model.rope_factor", "model.rope_original_len"),
    *("model.local_window", "model.global_every", "model.global_layers"),
    *("model.dtype", "model.scan_unroll", "model.rnn_unroll", "model.remat", "model.remat_policy"),
)
WAYS = {  # to other values
    "model.max_positions": "; init.positions=tile makes more",
    "model.num_layers": "; init.layers=spread takes some of them",
}
# The values of model.directionality that share their parameters, by family.
SHARED_DIRECTIONALITIES = {
    "transformer": ("bidirectional", "causal", "mixed"),
    "rnn": ("bidirectional", "mixed"),
    "mixer": ("bidirectional", "mixed"),
}


def inherit_fields(cfg: config.Config, *overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, by dotted name, that a config inherits from its source: config.init.run or config.init.hub.

    From a teacher that is a model it has its digest, and where there is no source the vocabulary.
    """
    for changes in overrides:
        cfg = fields.override(cfg, changes)
    from_teacher = _read_teacher_fields(cfg) if distillation.has_model(cfg.distillation) else {}
    return from_teacher | _inherit_model(cfg)


def _inherit_model(cfg):
    run, hub_folder = cfg.init.run, cfg.init.hub
    errors.require(not (run and hub_folder), "config.init.hub", hub_folder, "only one of config.init.run and this")
    if not (run or hub_folder):
        return {}
    source, kind = run or hub_folder, "run" if run else "hub"
    fields.check_values(cfg)
    if not source.startswith(pretrained_folder.HUB_PREFIX):
        files.check_folder(f"config.init.{kind}", source, writable=False, schemes=CHECKPOINT_SCHEMES if run else ())
    inherited_fields = read_source_fields(source, cfg, kind=kind)
    if cfg.model.rope_scaling and not inherited_fields.get("model.rope_scaling"):
        length = "pack.seq_len" if run else "model.max_positions"
        inherited_fields["model.rope_original_len"] = inherited_fields[length]
    data = fields.fill_derived_fields(corpus.DERIVED_FIELDS, cfg).data
    language = {name for name in inherited_fields if name.startswith("data.language.")}
    if data.corpus == "language":
        expected = f"text to train on, or config.data.task, since {source} has a vocabulary of its own"
        errors.require(bool(language), "config.data.path", data.path, expected)
        del inherited_fields["tokenizer.path"]  # `initialization.init_from_source` checks that the words are the same
    elif data.task not in tasks.LANGUAGE_TASKS:
        inherited_fields = {name: value for name, value in inherited_fields.items() if name not in language}
    return inherited_fields


def _read_teacher_fields(cfg) -> dict[str, Any]:
    """Those that the run in cfg.workdir has already, if it has this teacher, and that is gone; {} if it reads none."""
    fields.check_values(cfg)
    derived = fields.fill_derived_fields((*corpus.DERIVED_FIELDS, *tasks.DERIVED_FIELDS), cfg)
    if TEACHER in conditional_fields.find_unread_fields(objectives.FIELD_CONDITIONS, fields.flatten(derived)):
        return {}
    path, names = cfg.distillation.teacher, ("distillation.teacher_sha256", "tokenizer.path")
    if pretrained_folder.is_pretrained_folder(path):
        tokenizer = pretrained_folder.find_folder(path, f"config.{TEACHER}")
        digest = pretrained_folder.compute_digest(tokenizer)
    elif (teacher := RunDirectory(path)).read_identity() is not None:
        digest, tokenizer = checkpoint.read_newest_digest(teacher), str(teacher.tokenizer)
        errors.require(bool(digest), f"config.{TEACHER}", path, "a run with a checkpoint; it has none yet")
    else:
        saved = (RunDirectory(cfg.workdir).read_identity() or {"config": {}})["config"]
        hint = errors.format_hint(path, ("posterior", *teacher.list_siblings()))
        expected = f"posterior, the directory of a run, or a Hugging Face folder{hint}"
        errors.require(saved.get(TEACHER) == path, f"config.{TEACHER}", path, expected)
        digest, tokenizer = (saved[name] for name in names)
    is_generated = derived.data.corpus == "language"  # whose vocabulary is its own; `load_teacher` compares them
    return {TEACHER: path, names[0]: digest} | ({} if is_generated else {names[1]: tokenizer})


def read_source_fields(
    source: str, cfg: config.Config, *, kind: str = "", from_scratch: bool = False
) -> dict[str, Any]:
    """The fields, by dotted name, that a config inherits from a run or a Hugging Face folder.

    They are its model, its language, the length of its examples, its tokenizer, and a digest of its parameters unless
    from_scratch. If the source is gone, and the run in cfg.workdir began from it, the fields are those of that run.
    kind: "run" or "hub"; "": detect it. Raises ConfigError if there is no such source.
    """
    kind = kind or ("hub" if pretrained_folder.is_pretrained_folder(source) else "run")
    try:
        if kind == "run":
            return _read_run_fields(source, cfg, from_scratch)
        return _read_hub_fields(source, cfg, from_scratch)
    except errors.ConfigError:
        if files.make_path(source).exists():
            raise
        saved = RunDirectory(cfg.workdir).read_identity() or {"config": {}}
        init = {name: value for name, value in saved["config"].items() if name.startswith("init.")}
        if source not in (init.get("init.run"), init.get("init.hub")):
            raise
        return select_inherited_fields(saved["config"], cfg.workdir) | init


def _read_run_fields(workdir, cfg, from_scratch) -> dict[str, Any]:
    directory = RunDirectory(workdir)
    inherited_fields = select_inherited_fields(directory.require_identity()["config"], workdir)
    if cfg.data.cache_dir != config.Data().cache_dir:
        inherited_fields["data.cache_dir"] = cfg.data.cache_dir
    if from_scratch:
        return inherited_fields
    digest = checkpoint.read_newest_digest(directory)
    errors.require(bool(digest), "run", workdir, "a run with a checkpoint; it has none yet")
    return inherited_fields | {"init.run": workdir, "init.run_sha256": digest}


def _read_hub_fields(source, cfg, from_scratch) -> dict[str, Any]:
    """Examples are as long as cfg's, at most as the model allows."""
    folder = pretrained_folder.find_folder(source)
    inherited_fields = pretrained_folder.read_model_fields(folder)
    seq_len = min(cfg.pack.seq_len, inherited_fields["model.max_positions"])
    inherited_fields |= {"tokenizer.path": folder, "pack.seq_len": seq_len}
    if from_scratch:
        return inherited_fields
    return inherited_fields | {"init.hub": source, "init.hub_sha256": pretrained_folder.compute_digest(folder)}


def select_inherited_fields(flat_config: Mapping[str, Any], workdir: str) -> dict[str, Any]:
    """The fields, of all of a run by dotted name, that must be its own: not the kernels, which follow the platform."""
    inherited_fields = {
        name: value for name, value in flat_config.items() if name.startswith("model.") and name != "model.kernels"
    }
    if flat_config["data.corpus"] == "language":
        inherited_fields |= {name: value for name, value in flat_config.items() if name.startswith("data.language.")}
    data_fields = {name: flat_config[name] for name in ("pack.seq_len", "data.cache_dir")}
    return inherited_fields | data_fields | {"tokenizer.path": str(RunDirectory(workdir).tokenizer)}


def check_inherited_fields(cfg: config.Config, inherited_fields: Mapping[str, Any]) -> None:
    """Raises ConfigError if the model or the vocabulary of a config is not that of its source."""
    flat, source = fields.flatten(cfg), cfg.init.run or cfg.init.hub or cfg.distillation.teacher
    shared = SHARED_DIRECTIONALITIES.get(inherited_fields.get("model.family", ""), ())
    has_table = inherited_fields.get("model.positions") == "learned" or inherited_fields.get("model.family") == "mixer"
    free = {*FREE_FIELDS, *([] if has_table and not cfg.init.positions else ["model.max_positions"])}
    for name, value in inherited_fields.items():
        if name.startswith("model."):
            shares_params = name == "model.directionality" and {value, flat[name]} <= {*shared}
            is_part = name == "model.num_layers" and bool(cfg.init.layers) and flat[name] <= value
            is_allowed = flat[name] == value or shares_params or is_part or name in free
            way = WAYS.get(name, "")
            expected = f"{value!r}, as {source} has it; leave it out: its parameters depend on it{way}"
            errors.require(is_allowed, f"config.{name}", flat[name], expected)
    path, source_path = cfg.tokenizer.path, inherited_fields.get("tokenizer.path", "")
    if source_path not in ("", path) and not cfg.init.new_vocabulary:
        vocabularies = [
            kinds.load_tokenizer_folder("config.tokenizer.path", one).model for one in (path, source_path) if one
        ]
        is_same = len(vocabularies) == 2 and vocabularies[0] == vocabularies[1]
        has_source = cfg.init.run or cfg.init.hub
        remedy = f"leave it out{', or set init.new_vocabulary=true' if has_source else ''}"
        errors.require_field(cfg, "tokenizer.path", is_same, f"the vocabulary of {source}; {remedy}")
