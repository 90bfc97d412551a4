"""The steps from a config to a run: fields that follow from others are filled in, and each package checks its own."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mlm import models, objectives
from mlm.base import batch_warmup, conditional_fields, errors, fields, phases
from mlm.base.config import Config
from mlm.data.rows import pack
from mlm.data.tasks import tasks
from mlm.data.text import corpus, sources
from mlm.training.run import checkpoint, default_recipe, downstream, hooks, inheritance, trackers
from mlm.training.step import optim, parallel, trainable

FIELD_CONDITIONS = (
    *conditional_fields.DECLARED,
    *tasks.FIELD_CONDITIONS,
    *models.FIELD_CONDITIONS,
    *objectives.FIELD_CONDITIONS,
    *optim.FIELD_CONDITIONS,
)
# In this order: a field is derived after those that it depends on.
DERIVED_FIELDS = (
    *corpus.DERIVED_FIELDS,  # data.corpus
    *sources.DERIVED_FIELDS,  # phases
    *phases.DERIVED_FIELDS,  # pack.seq_len, train.batch_size, mask.rate
    *tasks.DERIVED_FIELDS,  # data.labelled, objective
    *pack.DERIVED_FIELDS,  # data.language.max_words, tokenizer, pack
    *models.DERIVED_FIELDS,  # model.cell, sizes
    *objectives.DERIVED_FIELDS,  # model.directionality, mask
    *default_recipe.DERIVED_FIELDS,  # model.positions, init_std, dropout; optim.learning_rate
)


@dataclasses.dataclass(frozen=True)
class ResolvedConfig:
    """A config with the final value of every field.

    origins: where each value comes from: "default", a layer's origin, or the fields that it follows from, with theirs.
    dropped: why nothing reads what the last layer sets, by field, where such fields are left out.
    """

    config: Config
    origins: Mapping[str, str]
    dropped: Mapping[str, str] = dataclasses.field(default_factory=dict)


def resolve(cfg: Config, *overrides: Mapping[str, Any]) -> Config:
    """The config of `resolve_layers`; overrides: fields by dotted name, each mapping a layer above those before it."""
    return resolve_layers(make_layers(cfg, *overrides)).config


def make_layers(cfg: Config, *overrides: Mapping[str, Any]) -> list[fields.Layer]:
    """The layers of a config and of what overrides it, where it does not matter what they are called."""
    return [
        fields.Layer("config", fields.find_changes(cfg)),
        *(fields.Layer("override", changes) for changes in overrides),
    ]


def resolve_layers(layers: Sequence[fields.Layer], num_base: int = 1, *, drop_unread: bool = False) -> ResolvedConfig:
    """The way from what a user sets to the checked config of a run: `merge_layers`, with what its source hands down.

    Inherited fields lie above the first num_base layers. drop_unread: leave out what the last layer sets and nothing
    reads, in place of an error. Raises ConfigError as `merge_layers` does, and if the source cannot be read.
    """
    inherited_fields = inheritance.inherit_fields(Config(), *(layer.values for layer in layers))
    names = (name for name in inheritance.SOURCES if inherited_fields.get(name))
    origin = next((f"{name} = {inherited_fields[name]!r}" for name in names), "")
    inherited = [fields.Layer(origin, inherited_fields)] if inherited_fields else []
    return merge_layers([*layers[:num_base], *inherited, *layers[num_base:]], inherited_fields, drop_unread=drop_unread)


def merge_layers(
    layers: Sequence[fields.Layer], inherited_fields: Mapping[str, Any] | None = None, *, drop_unread: bool = False
) -> ResolvedConfig:
    """Puts layers on the defaults, fills in the fields that follow from others, and checks all; reads no other run.

    A field that a layer sets and the run reads keeps its value, unless that value is one that stands for what follows
    from other fields, such as model.width = 0. A field that was set below another layer may lose its reader by it:
    `--config.data.path` over a recipe for the built-in language. It then returns to its default. Raises ConfigError
    where nothing reads a field at the layer that set it, no run could use a value, or the model is not that inherited.
    """
    levels, names, origins = [Config()], [frozenset[str]()], dict.fromkeys(fields.DEFAULT, "default")
    for layer in layers:
        levels.append(fields.override(levels[-1], layer.values))
        names.append(names[-1] | layer.values.keys())
        origins |= dict.fromkeys(layer.values, layer.origin)
    unread = find_unread_settings(levels[-1], names[-1])
    if drop_unread and (dropped := {name: why for name, why in unread.items() if name in layers[-1].values}):
        read = {name: value for name, value in layers[-1].values.items() if name not in dropped}
        resolved = merge_layers([*layers[:-1], fields.Layer(layers[-1].origin, read)], inherited_fields)
        return dataclasses.replace(resolved, dropped=dropped)
    defaults = {}
    for name, why in unread.items():
        level = max(i for i, layer in enumerate(layers, 1) if name in layer.values)
        if name in find_unread_settings(levels[level], names[level]):
            check(derive_fields(levels[-1], names[-1]))  # where the reader's own field is wrong, report that one
            value = fields.flatten(levels[level])[name]
            raise errors.ConfigError(f"config.{name} = {value!r}: nothing reads it, since {why}; leave it out")
        defaults[name] = fields.DEFAULT[name]
        origins[name] = "default"
    cfg = fields.override(levels[-1], defaults)
    settings, cfg = fields.flatten(cfg), derive_fields(cfg, names[-1])
    flat = fields.flatten(cfg)
    for row in DERIVED_FIELDS:
        if flat[row.field] != settings[row.field]:
            causes = [name for name in row.depends_on if flat[name]] or row.depends_on
            origins[row.field] = ", ".join(f"{name} = {flat[name]!r}" for name in causes)
    inheritance.check_inherited_fields(cfg, inherited_fields or {})
    check(cfg)
    return ResolvedConfig(cfg, origins)


def find_unread_settings(cfg: Config, names: Collection[str] = ()) -> dict[str, str]:
    """The fields that cfg sets itself, those in `names` among them, though nothing reads them; with the reason."""
    fields.check_values(cfg)
    unread = {}
    settings, filled = fields.flatten(cfg), derive_fields(cfg, names)
    for name, why in conditional_fields.find_unread_fields(FIELD_CONDITIONS, fields.flatten(filled)).items():
        if settings[name] != fields.DEFAULT[name]:
            without = derive_fields(fields.override(cfg, {name: fields.DEFAULT[name]}), names)
            if settings[name] != fields.flatten(without)[name]:
                unread[name] = why
    return unread


def derive_fields(cfg: Config, names: Collection[str] = ()) -> Config:
    """The config with the fields that follow from others filled in, where they are not set; names: of those set."""
    return fields.fill_derived_fields(DERIVED_FIELDS, cfg, names)


def check(cfg: Config) -> None:
    """Raises ConfigError for the first value of a resolved config that no run could use; compiles nothing."""
    try:
        fields.check_values(cfg)
        phases.check(cfg)
        _check_resolved(cfg)
        _check_phases(cfg)
    except errors.ConfigError as error:
        raise errors.ConfigError(_name_cause(cfg, str(error))) from None


def _name_cause(cfg, message):
    """The message, which begins with the field that somebody set where that of the message follows from it."""
    flat, name = fields.flatten(cfg), message.partition(" = ")[0].removeprefix("config.")
    rows = (row for row in DERIVED_FIELDS if row not in phases.DERIVED_FIELDS or row.applies(cfg))
    derived = {row.field: row.depends_on for row in rows}
    for field in derived.get(name, ()):
        if field not in derived and flat[field] != fields.DEFAULT[field]:
            again = derive_fields(fields.override(cfg, {name: fields.DEFAULT[name]}))
            if fields.flatten(again)[name] == flat[name]:
                return f"config.{field} = {errors.format_value(flat[field])}, from which follows {message}"
    return message


def _check_resolved(cfg):
    _check_init(cfg)
    corpus.check(cfg.data)
    pack.check(cfg)
    models.check(cfg)
    objectives.check(cfg)
    _check_source(cfg)
    optim.check(cfg.optim, cfg.train.steps)
    trainable.check(cfg)
    downstream.check(cfg)
    errors.require_one_of("config.parallel.mode", cfg.parallel.mode, list(parallel.MODES))
    checkpoint.check_milestones(cfg)
    is_within = not cfg.train.profile or sum(hooks.parse_profile(cfg.train.profile)) - 1 <= cfg.train.steps
    errors.require_field(cfg, "train.profile", is_within, f"steps up to config.train.steps = {cfg.train.steps}")
    batch_warmup.check(cfg.train)
    trackers.check(cfg.train.trackers)
    is_divisor = cfg.train.batch_size % cfg.train.grad_accum_steps == 0
    expected = f"a divisor of config.train.batch_size = {cfg.train.batch_size}"
    errors.require_field(cfg, "train.grad_accum_steps", is_divisor, expected)
    order = cfg.eval.ngram_order
    errors.require_field(cfg, "eval.ngram_order", order == 0 or 2 <= order <= 9, "0, or an order from 2 to 9")


def _check_phases(cfg):
    unread = conditional_fields.find_unread_fields(FIELD_CONDITIONS, fields.flatten(cfg))
    for name, field in phases.PHASE_FIELDS.items():
        is_read = field not in unread or not getattr(cfg.phases, name)
        errors.require_field(cfg, f"phases.{name}", is_read, f"none, since {unread.get(field)}")
    for phase in phases.list_phases(cfg)[:-1]:
        with errors.name_place(f"config.phases, phase {phase.number + 1}"):
            _check_resolved(phase.cfg)


def _check_init(cfg):
    """What says how a source is taken has a source."""
    for name in ("positions", "new_vocabulary", "layers", "embedding_steps"):
        value, has_source = getattr(cfg.init, name), bool(cfg.init.run or cfg.init.hub)
        expected = "a source beside it, config.init.run or config.init.hub"
        errors.require(has_source or not value, f"config.init.{name}", value, expected)
    has_table = cfg.model.positions == "learned" or not cfg.init.positions
    errors.require_field(cfg, "init.positions", has_table, "nothing, since only learned positions have a table")


def _check_source(cfg):
    """Examples have a source exactly where the model reads one; the corpus has it, or the objective makes it."""
    has_source, makes_source = cfg.data.corpus == "parallel", objectives.makes_source(cfg)
    reads_source = models.reads_source(cfg)
    expected = "one that makes no source, since the examples of config.data.corpus = parallel have one"
    errors.require_field(cfg, "objective", not (has_source and makes_source), expected)
    why = "config.data.corpus is parallel" if has_source else f"config.objective is {cfg.objective}"
    expected = f"one that reads a source, such as encoder_decoder, since {why}"
    if reads_source:
        expected = "one that reads no source, unless config.data.corpus is parallel or config.objective is denoising"
    errors.require_field(cfg, "model.family", reads_source == (has_source or makes_source), expected)
