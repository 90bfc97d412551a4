"""Config fields by dotted name: list, override, derive and check them; a run's fingerprint and identity."""

# A tuple's elements are of no declared type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
import dataclasses
import difflib
import hashlib
import json
import math
import operator
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast, get_args, get_origin

from mlm.base import files, text_files
from mlm.base.config import Bounds, Config
from mlm.base.errors import ConfigError, explain, require, require_one_of

# Bounds of float32's normal numbers, as literals: importing NumPy would take longer than all of --help.
FLOAT32_MIN, FLOAT32_MAX = 2.0**-126, (2 - 2.0**-23) * 2.0**127
ConfigT = TypeVar("ConfigT", bound=Config)
# Versions of the random draws, which are part of a fingerprint: whoever changes a draw must raise its number here.
RNG_VERSIONS = {
    "language": 1,  # documents of the built-in language (mlm/data/language/grammar.py)
    "batches": 2,  # the examples of each step (mlm/data/rows/loader.py)
    "masks": 2,  # which tokens are masked, by what (mlm/objectives/masking.py; keys: mlm/training/step/update.py)
    "dropout": 2,  # dropout masks (mlm/models/layers.py)
    "parameters": 1,  # initial parameters (mlm/models/)
    "probes": 1,  # items of the probes of the built-in language (mlm/data/language/probes.py)
}
WORD_MASKS = {"word_masks": 2}  # of runs whose masks are of words that may have several tokens, beside the above
UNKNOWN_WORDS = {"unknown_words": 2}  # of those whose masks of words may have [UNK]
REPLACEMENTS = {"replacements": 2}  # of those that detect replaced tokens (mlm/objectives/replaced_token_detection.py)
RUN_FORMAT = 3  # version of a run's files: raise it when this version no longer reads older files


class Declaration(NamedTuple):
    """All that is declared of a field."""

    default: Any
    number_type: type  # of its number, or of each in a tuple; else the type of its value
    bounds: Bounds  # of that number; without meaning for other values
    choices: tuple[str, ...]  # of a text; (): any
    facts: Mapping[str, Any]  # as config.Facts, with its help, and those of its sections


def list_declarations(
    section: type, prefix: str = "", outer_facts: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[tuple[str, Declaration]]:
    """A section's leaf fields by dotted name, in order; outer_facts: what is true of the section as a whole."""
    for field in dataclasses.fields(section):
        kind, name = cast(Any, field.type), prefix + field.name
        conditions = {key: {**outer_facts.get(key, {}), **field.metadata.get(key, {})} for key in ("when", "unless")}
        for condition in conditions.values():
            condition.pop(name, None)  # of its section
        facts = {**outer_facts, **field.metadata, **conditions}
        if hasattr(kind, "__dataclass_fields__"):
            yield from list_declarations(kind, f"{name}.", facts)
        else:
            element = get_args(kind)[0] if get_origin(kind) is tuple else kind
            kind, *limits = cast(Any, get_args(element) or (element,))
            bounds, choices = (None, limits) if kind is str else ((*limits, None)[0], ())
            yield name, Declaration(field.default, kind, cast(Any, bounds), tuple(choices), facts)


DECLARATIONS = dict(list_declarations(Config))
DEFAULT = {name: declaration.default for name, declaration in DECLARATIONS.items()}
_get_values = operator.attrgetter(*DECLARATIONS)
_RESULT_FIELDS = [name for name, declared in DECLARATIONS.items() if declared.facts.get("affects_result", True)]
_PATH_DIGESTS = {name: field for name, declared in DECLARATIONS.items() if (field := declared.facts.get("path_sha256"))}
PATH_FIELDS = frozenset(name for name, declaration in DECLARATIONS.items() if declaration.facts.get("is_path"))
FIRST_DEFAULT = {"optim.warmup_fraction": 0.06}  # of fields whose default has changed since: fingerprints keep it
# Of no model: a saved run may still name them.
REMOVED_FIELDS = {"train.spike_threshold", "train.spike_rewind_steps", "train.spike_max_rewinds"}
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
ALIASES = {  # what other libraries call fields: for the hint of an error alone
    "lr": "optim.learning_rate",
    "bs": "train.batch_size",
    "batch_size": "train.batch_size",
    "max_steps": "train.steps",
    "hidden_size": "model.width",
    "d_model": "model.width",
    "dim": "model.width",
    "intermediate_size": "model.mlp_dim",
    "num_hidden_layers": "model.num_layers",
    "num_attention_heads": "model.num_heads",
    "max_length": "pack.seq_len",
    "hidden_dropout_prob": "model.dropout",
}


def flatten(config: Config, *, results_only: bool = False) -> dict[str, Any]:
    """All fields by dotted name, in order; results_only: without those that cannot change a result."""
    flat = dict(zip(DECLARATIONS, _get_values(config), strict=True))
    if not results_only:
        return flat
    return {name: flat[name] for name in _RESULT_FIELDS if not flat.get(_PATH_DIGESTS.get(name, ""))}


class Layer(NamedTuple):
    """Values of fields from one origin. Layers lie on each other: a later one overrides those before it."""

    origin: str  # where the values come from: a file, the command line
    values: Mapping[str, Any]  # by dotted name


def find_changes(config: Config) -> dict[str, Any]:
    """The fields, by dotted name, that are not at their default."""
    return {name: value for name, value in flatten(config).items() if value != DEFAULT[name]}


def check_name(name: str) -> None:
    """Raises ConfigError, which suggests the closest name, unless name is the dotted name of a field of Config."""
    if type(name) is not str or name not in DEFAULT:
        require(type(name) is str and len(name) < 100, "field", name, "the dotted name of a field of config")
        near = suggest_name(name)
        hint = f"; did you mean config.{near}?" if near else ""
        raise ConfigError(f"config.{name if name == ''.join(name.split()) else repr(name)}: no such field{hint}")


def suggest_name(name: str) -> str:
    """The dotted name of the field that a name may stand for, such as train.steps for steps; "": none is near."""
    leaf = name.rpartition(".")[2]
    near = (
        [full for full in (name.strip(), ALIASES.get(leaf)) if full in DEFAULT]
        or difflib.get_close_matches(name, DEFAULT, n=1, cutoff=0.6)
        or [full for full in DEFAULT if full.rpartition(".")[2] == leaf]
    )
    return near[0] if near else ""


def override(config: ConfigT, changes: Mapping[str, Any]) -> ConfigT:
    """A copy of config with new values by dotted name. Raises ConfigError for an unknown name or another type."""
    replaced: dict[str, Any] = {}
    for name, value in changes.items():
        check_name(name)
        kind = type(operator.attrgetter(name)(config))
        if kind is float:
            value = _int_to_float(value)
        elif kind is tuple and type(value) in (tuple, list):  # JSON has lists
            value = tuple(map(_int_to_float, value) if DECLARATIONS[name].number_type is float else value)
        require(type(value) is kind, f"config.{name}", value, f"a value of type {kind.__name__}")
        replaced[name] = files.expand_home(f"config.{name}", str(value)) if name in PATH_FIELDS else value
    return replace_values(config, replaced)


class DerivedField(NamedTuple):
    """A field that takes its value from others, which are derived before it, as long as it has its default."""

    field: str  # dotted name
    depends_on: tuple[str, ...]
    derive: Callable[[Config], Any]  # its value; raises ConfigError where a field that it depends on is wrong
    applies: Callable[[Config], bool] = lambda cfg: True  # whether it is derived at all
    # Whether its default is a value like any other, and not one that stands for the derived one, such as 0 or "". A
    # user who sets it means it.
    default_is_choice: bool = False


def fill_derived_fields(derived_fields: Iterable[DerivedField], cfg: Config, names: Collection[str] = ()) -> Config:
    """The config with values for those of the fields that have their default; names: of fields that somebody set."""
    for row in derived_fields:
        if row.applies(cfg) and not (row.default_is_choice and row.field in names):
            value = row.derive(cfg)
            if value != operator.attrgetter(row.field)(cfg) == DEFAULT[row.field]:
                cfg = override(cfg, {row.field: value})
    return cfg


def parse_number(kind: Callable[[str], Any], text: str) -> Any:
    """The number in a text. Raises ValueError for any other text, and for digits that are not 0 to 9."""
    if not text.isascii():
        raise ValueError("expected the digits 0 to 9")
    return kind(text)


def parse_value(name: str, text: str) -> Any:
    """Parses a text as the type of the field with this dotted name. Raises ConfigError if it cannot."""
    default = DEFAULT[name]
    kind = type(default)
    if name in PATH_FIELDS:
        return files.expand_home(f"config.{name}", text)
    try:
        if kind is bool:
            return BOOLEANS[text.lower()]
        if kind is tuple:
            part_kind = DECLARATIONS[name].number_type
            parts = text.strip("()[] ").removesuffix(",")  # (32,) is how Python writes one
            return tuple(parse_number(part_kind, part) for part in parts.split(",")) if parts else ()
        return text if kind is str else parse_number(kind, text)
    except (ValueError, KeyError):
        words: dict[type, str] = {bool: "true or false", tuple: "numbers separated by commas"}
        expected = words.get(kind, f"a value of type {kind.__name__}")
        raise ConfigError(f"config.{name} = {text!r}: expected {expected}") from None


def format_flag(name: str, value: Any) -> str:
    """The flag of a command that sets a field."""
    return f"--config.{name}={str(value).lower() if isinstance(value, bool) else value}"


def replace_values(section: Any, values: Mapping[str, Any]) -> Any:
    """A copy of a section with values by dotted name, whatever their types; copies each section below it once."""
    leaves: dict[str, Any] = {}
    below: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        head, _, rest = name.partition(".")
        if rest:
            below.setdefault(head, {})[rest] = value
        else:
            leaves[head] = value
    sections = {head: replace_values(getattr(section, head), inner) for head, inner in below.items()}
    return dataclasses.replace(section, **leaves, **sections)


def _int_to_float(value: Any) -> Any:
    return float(value) if type(value) is int and abs(value) < 2**1000 else value


def check_values(config: Config) -> None:
    """Raises ConfigError for a value that its field cannot have, or float32, or int32 (uint32 where bounds say so)."""
    with explain("config", "a section of config.Config in each of its fields", AttributeError):
        flat = flatten(config)
    for name, declaration in DECLARATIONS.items():
        value: Any = flat[name]
        kind = type(declaration.default)
        require(type(value) is kind, f"config.{name}", value, f"a value of type {kind.__name__}")
        if value == declaration.default:
            continue
        if kind is tuple:
            expected = "integers" if declaration.number_type is int else "numbers with a decimal point"
            is_typed = all(type(element) is declaration.number_type for element in value)
            require(is_typed, f"config.{name}", value, expected)
            for element in value:
                _check_number(f"config.{name}", element, declaration.bounds)
        elif kind is str:
            is_text = not text_files.SURROGATE.search(value)
            has_control = any(ord(letter) < 32 and letter != "\t" for letter in value)
            expected = "text without line ends and control characters, in UTF-8"
            require(is_text and not has_control, f"config.{name}", value, expected)
            if declaration.choices:
                require_one_of(f"config.{name}", value, declaration.choices)
        elif kind is not bool:
            _check_number(f"config.{name}", value, declaration.bounds)


def _check_number(name: str, value: Any, bounds: Bounds) -> None:
    largest = FLOAT32_MAX if type(value) is float else max(2**31 - 1, bounds.high if bounds.high < math.inf else 0)
    expected = f"{bounds}, at most {largest:.10g}" if value > largest < bounds.high else str(bounds)
    require(bounds.contains(value) and value <= largest, name, value, expected)
    expected = f"0, or at least {FLOAT32_MIN:.2g} in size, as float32 holds it"
    require(value == 0 or abs(value) >= FLOAT32_MIN, name, value, expected)


def select_changed(config: Config) -> dict[str, Any]:
    """The fields that can change a result and are not at their first default, flat.

    What is named by them keeps its name where a field is new and its default keeps the old behavior, and where a
    default changes.
    """
    values = flatten(config, results_only=True).items()
    return {name: value for name, value in values if value != FIRST_DEFAULT.get(name, DEFAULT[name])}


def fingerprint(config: Config) -> str:
    """Twelve hexadecimal digits of all that can change the result of a resolved config: fields and random draws."""
    changed = select_changed(config)
    versions = get_rng_versions(config.objective)
    masks_words = config.mask.unit != "token" or config.eval.mask_unit != "token"
    versions |= WORD_MASKS if masks_words and config.tokenizer.kind != "words" else {}
    versions |= UNKNOWN_WORDS if config.mask.mask_unk and config.mask.unit != "token" else {}
    return hashlib.sha256(json.dumps([changed, versions], sort_keys=True).encode()).hexdigest()[:12]


def build_identity(config: Config, data: Mapping[str, Any]) -> dict[str, Any]:
    """The identity that a run's files store. data: the identity of the packed examples."""
    versions = get_rng_versions(config.objective)
    return {"config": flatten(config), "data": data, "rng_versions": versions, "format": RUN_FORMAT}


def get_rng_versions(objective: str) -> dict[str, int]:
    """The versions of the draws of a run with this objective, by name."""
    return RNG_VERSIONS | (REPLACEMENTS if objective == "replaced_token_detection" else {})


def check_format(saved: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError unless this version reads the files of a run with the identity `saved`."""
    version = saved.get("format", 1)
    if version != RUN_FORMAT:
        maker = f"{'an earlier' if version < RUN_FORMAT else 'a later'} version of mlm (run format {version}"
        remedy = f"this one reads {RUN_FORMAT}): use that version, or train it again"
        raise ConfigError(f"{where} was made by {maker}, {remedy}")


def describe_rng_change(saved: Mapping[str, Any]) -> str:
    """The random draws whose version differs from that of the saved identity, as text; "" if there are none."""
    versions, current = saved.get("rng_versions", {}), get_rng_versions(saved.get("config", {}).get("objective", ""))
    changed = [name for name, version in current.items() if versions.get(name, 1) != version]
    return "; ".join(f"{name} {versions.get(name, 1)}, now {current[name]}" for name in changed)


def suggest_workdir(cfg: Config) -> str:
    """What to add to the command line so that a run goes to a directory of its own."""
    path = cfg.workdir.rstrip("/")
    numbered = re.fullmatch(r"(.+)-([0-9]{1,3})", path)
    name = f"{numbered[1]}-{int(numbered[2]) + 1}" if numbered else f"{path}-2"
    return f"choose another config.workdir, such as {shlex.quote(f'workdir={name}')}"


def check_config(cfg: Config, saved: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError, which names the differences, unless the config of the saved identity gives the same result.

    A field that `saved` lacks, because it was added later, has its default. Kernels change the rounding alone: they are
    not part of the fingerprint, but a run never changes them.
    """
    default, current = (json.loads(json.dumps(flatten(config, results_only=True))) for config in (Config(), cfg))
    if cfg.model.kernels != "auto":
        default["model.kernels"], current["model.kernels"] = "auto", cfg.model.kernels
    stored = default | saved["config"]  # JSON turned tuples into lists
    names = [name for name, value in current.items() if stored[name] != value]
    if names:
        differences = [f"config.{name} = {current[name]!r}, there {stored[name]!r}" for name in names]
        raise ConfigError(f"{where} belongs to another config: {'; '.join(differences)}; {suggest_workdir(cfg)}")


def check_identity(cfg: Config, data: Mapping[str, Any], saved: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError as `check_config` does, and if the saved identity is of other random draws or other data."""
    check_config(cfg, saved, where)
    if rng_change := describe_rng_change(saved):
        maker = f"another version with other random draws ({rng_change})"
        remedy = f"{suggest_workdir(cfg)}, or remove the folder to train again"
        raise ConfigError(f"{where} was made by {maker}: {remedy}")
    if changed := ", ".join(name for name in data if saved["data"].get(name) != data[name]):
        raise ConfigError(f"{where} was trained on other data: {changed} changed since; {suggest_workdir(cfg)}")
