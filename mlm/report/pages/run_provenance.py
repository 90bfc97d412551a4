"""The provenance of the runs of a page: commit, versions, devices and dates, and in which of them the runs differ."""

from collections.abc import Sequence
from typing import NamedTuple

from mlm.base.groups import group_values
from mlm.report import series

UNKNOWN, NONE = "not known", "none"
MAX_NAMED_FILES = 5  # changed files of a run that are listed


class RunProvenance(NamedTuple):
    """The provenance of several runs, by the names of its properties."""

    same: dict[str, str]  # properties that are equal in all runs
    mixed: dict[str, dict[str, list[str]]]  # other properties: name -> value -> the group of each run with that value,
    # the most frequent value first
    runs: list[dict[str, str]]  # for each run its values of the other properties
    start_times: list[str]  # for each run (UTC), "" if unknown
    end_times: list[str]


def collect_provenance(results: Sequence[dict]) -> RunProvenance:
    """The provenance of runs, each with "provenance", a record per start."""
    starts = [result.get("provenance") or [{}] for result in results]
    runs = [describe_run(records) for records in starts]
    same, mixed = {}, {}
    for name in dict.fromkeys(name for run in runs for name in run):
        pairs = zip(runs, results, strict=True)
        by_value = group_values((run.get(name, UNKNOWN), series.group_name(result)) for run, result in pairs)
        if len(by_value) == 1:
            same[name] = next(iter(by_value))
        else:
            mixed[name] = dict(sorted(by_value.items(), key=lambda item: -len(item[1])))
    start_times = [format_minute(records[0].get("time")) for records in starts]
    end_times = [format_minute(records[-1].get("ended")) for records in starts]
    different = [{name: run.get(name, UNKNOWN) for name in mixed} for run in runs]
    return RunProvenance(same, mixed, different, start_times, end_times)


def describe_run(starts: Sequence[dict]) -> dict[str, str]:
    """The properties of a run; those of several starts are joined in order, without starts whose steps were lost."""
    descriptions = [
        {
            "commit": start["commit"][:7] if start["commit"] else UNKNOWN,
            "changed files": describe_changes(start["changed_files"]),
            "device": describe_device(start),
            "Python": start["python"],
            **start["versions"],
        }
        for i, start in enumerate(starts)
        if start and all(later["step"] > start["step"] for later in starts[i + 1 :])
    ]
    return {
        name: ", then ".join(dict.fromkeys(description.get(name, UNKNOWN) for description in descriptions))
        for name in dict.fromkeys(name for description in descriptions for name in description)
    }


def describe_changes(status: str | None) -> str:
    """The files in the output of `git status --porcelain`."""
    if status is None:
        return UNKNOWN
    names = [line.split(maxsplit=1)[-1] for line in status.splitlines()]
    if len(names) > MAX_NAMED_FILES:
        names[MAX_NAMED_FILES:] = [f"and {len(names) - MAX_NAMED_FILES} more"]
    return ", ".join(names) or NONE


def describe_device(start: dict) -> str:
    """The devices of a start, in words; a CPU by its name, where it was recorded."""
    device = start["device"] if start["device"] != "cpu" else start.get("processor", "cpu")
    count = f"{start['devices']} x " if start["devices"] > 1 else ""
    return f"{count}{device}" + (f" in {start['processes']} processes" if start["processes"] > 1 else "")


def format_minute(time: str | None) -> str:
    """A time without its seconds; empty if it is unknown."""
    return time[:16].replace("T", " ") if time else ""
