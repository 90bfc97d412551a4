"""Where the runs of a page come from: commit, versions, devices and dates; what all share, and what they do not."""
from collections.abc import Callable, Sequence
from typing import NamedTuple

UNKNOWN, NONE = "not known", "none"
NAMED = 5  # changed files of a run that are named


class Origins(NamedTuple):
    """same: what all runs share, by its name. mixed: of the rest the groups of the runs that have a value, one for each
    run, by name and value; the value that most runs have is the first. runs: for each run what it has of the rest.
    since, until: for each run the time (UTC) at which it was begun, and at which it ended, "" where that is not known.
    """

    same: dict[str, str]
    mixed: dict[str, dict[str, list[str]]]
    runs: list[dict[str, str]]
    since: list[str]
    until: list[str]


def origins(results: Sequence[dict], group: Callable[[dict], str]) -> Origins:
    """results: runs as `series` says, each with its "provenance", a record of each start."""
    starts = [result.get("provenance") or [{}] for result in results]
    runs = [origin(each) for each in starts]
    same, mixed = {}, {}
    for name in dict.fromkeys(name for run in runs for name in run):
        groups = {}
        for run, result in zip(runs, results, strict=True):
            groups.setdefault(run.get(name, UNKNOWN), []).append(group(result))
        if len(groups) == 1:
            same[name] = next(iter(groups))
        else:
            mixed[name] = dict(sorted(groups.items(), key=lambda of: -len(of[1])))
    return Origins(same, mixed, [{name: run.get(name, UNKNOWN) for name in mixed} for run in runs],
                   [minute(each[0].get("time")) for each in starts], [minute(each[-1].get("ended")) for each in starts])


def origin(starts: Sequence[dict]) -> dict[str, str]:
    """What a run was made by; of several starts all, in their order, but those of whose steps nothing was kept."""
    kept = [start for i, start in enumerate(starts)
            if start and all(later["step"] > start["step"] for later in starts[i + 1:])]
    told = [{"commit": start["commit"][:7] if start["commit"] else UNKNOWN,
             "changed files": changed(start["changed_files"]), "device": device(start), "Python": start["python"],
             **start["versions"]} for start in kept]
    return {name: ", then ".join(dict.fromkeys(one.get(name, UNKNOWN) for one in told))
            for name in dict.fromkeys(name for one in told for name in one)}


def changed(status: str | None) -> str:
    """What `git status --porcelain` said, as the files it names."""
    if status is None:
        return UNKNOWN
    names = [line.split(maxsplit=1)[-1] for line in status.splitlines()]
    return ", ".join(names[:NAMED] + [f"and {len(names) - NAMED} more"] * (len(names) > NAMED)) or NONE


def device(start: dict) -> str:
    many = f"{start['devices']} x " if start["devices"] > 1 else ""
    return f"{many}{start['device']}" + (f" in {start['processes']} processes" if start["processes"] > 1 else "")


def minute(time: str | None) -> str:
    return time[:16].replace("T", " ") if time else ""
