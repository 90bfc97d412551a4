"""gcloud and kubectl, as far as mlm/launch/cluster/ calls them: they record calls and requests in files."""

import os
import sys
from pathlib import Path

# $CLOUD: calls, resources/NAME/{state, nodes, host-*/}, preempt/NAME (it is preempted once), missing (hosts that do not
# answer the first time). A list brings each resource one state further.
GCLOUD = r"""#!/usr/bin/env bash
set -euo pipefail
exec 8>>"$CLOUD/lock" && flock 8  # one call at a time changes anything
said=$*
echo "${said//$'\n'/ }" >>"$CLOUD/calls"
shift 3
verb=$1 name=${2:-} node=0 command="" nodes=1
for word in "$@"; do
    case $word in
    --node=*) node=${word#*=} ;;
    --command=*) command=${word#*=} ;;
    --node-count=*) nodes=${word#*=} ;;
    --filter=*) filter=${word#*/} ;;
    esac
done
[ "$verb" != scp ] || name=${3%%:*}
here="$CLOUD/resources/$name"
absent() { echo "ERROR: NOT_FOUND: $name" >&2; exit 1; }

end() {  # all that its hosts do
    local pid
    for pid in "$here"/host-*/mlm.run/pid; do [ ! -e "$pid" ] || pkill -KILL --session "$(cat "$pid")" || true; done
}

case $verb in
list)
    for here in "$CLOUD"/resources/*; do
        [[ $(basename "$here") =~ ^$filter ]] || continue
        state=$(cat "$here/state")
        printf '%s\t%s\n' "$(basename "$here")" "$state"
        case $state in
        WAITING_FOR_RESOURCES) echo PROVISIONING >"$here/state" ;;
        PROVISIONING) echo ACTIVE >"$here/state" ;;
        esac
    done
    ;;
create)
    [ ! -e "$here" ] || { echo "ERROR: ALREADY_EXISTS: $name" >&2; exit 1; }
    for host in $(seq 0 $((nodes * 2 - 1))); do mkdir -p "$here/host-$host"; done
    echo WAITING_FOR_RESOURCES >"$here/state"
    ;;
delete)
    [ -e "$here" ] || absent
    end
    rm -r "$here"
    ;;
scp)
    [ -e "$here" ] && [ "$(cat "$here/state")" = ACTIVE ] || absent
    for host in "$here"/host-*; do cp "$2" "$host/${3#*:}"; done
    ;;
ssh)
    [ -e "$here" ] && [ "$(cat "$here/state")" = ACTIVE ] || absent
    if [ -e "$CLOUD/preempt/$name" ] && [ -e "$here/host-0/mlm.run/pid" ]; then
        rm "$CLOUD/preempt/$name"
        end
        echo SUSPENDED >"$here/state"
        absent
    fi
    for host in "$here"/host-*; do
        [ "$node" = all ] || [ "$host" = "$here/host-0" ] || continue
        if [ "$node" = all ] && [ -e "$CLOUD/missing" ] && [ "$host" = "$here/host-1" ]; then
            rm "$CLOUD/missing"
            continue
        fi
        (cd "$host" && HOME=$host MEGASCALE_NUM_SLICES=7 bash -c "$command") 8>&- 9>&-  # another machine
    done
    ;;
esac
"""


# $CLOUD: calls, jobsets.json as the server would list them.
KUBECTL = r"""import fcntl, json, os, pathlib, sys
cloud = pathlib.Path(os.environ["CLOUD"])
lock = (cloud / "lock").open("a")
fcntl.flock(lock, fcntl.LOCK_EX)  # one call at a time changes anything: one that resumes a job would bring back others
flags = dict(word.partition("=")[::2] for word in sys.argv[1:] if word.startswith("--"))
with (cloud / "calls").open("a") as calls:
    print(*sys.argv[1:], file=calls)
kept = cloud / "jobsets.json"
jobsets = json.loads(kept.read_text()) if kept.exists() else {}
label, _, value = flags.get("--selector", "").partition("=")
names = [name for name, one in jobsets.items() if one["metadata"]["labels"].get(label) == value
         and one["metadata"]["namespace"] == flags.get("--namespace")]
verb = sys.argv[1]
if verb in ("apply", "patch"):
    import yaml
if verb == "apply":
    for one in yaml.safe_load_all(open(flags["--filename"])):
        jobsets.setdefault(one["metadata"]["name"], one)
if verb == "get" and "in (" in flags["--selector"]:
    wanted = flags["--selector"].partition("in (")[2].rstrip(")").split(",")
    print(*(f"<{one.get('status', {}).get('terminalState', '')}>" for one in jobsets.values()
            if one["metadata"]["labels"]["mlm-job"] in wanted), sep="", end="")
elif verb == "get":
    print(json.dumps({"items": [jobsets[name] for name in names]}))
elif verb == "delete":
    jobsets = {name: one for name, one in jobsets.items() if name not in names}
elif verb == "patch":
    for one in yaml.safe_load_all(open(flags["--filename"])):
        jobsets[one["metadata"]["name"]]["spec"] |= json.loads(flags["--patch"])["spec"]
if verb != "get":
    aside = kept.with_suffix(f".{os.getpid()}")
    aside.write_text(json.dumps(jobsets))
    aside.rename(kept)
"""


def install(path: Path, monkeypatch) -> Path:
    """Puts both on PATH, with a cloud in a folder, which is returned."""
    cloud, tools = path / "cloud", path / "tools"
    for folder in (cloud / "resources", cloud / "preempt", tools):
        folder.mkdir(parents=True)
    for name, text in (("gcloud", GCLOUD), ("kubectl", f"#!{sys.executable}\n{KUBECTL}")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CLOUD", str(cloud))
    monkeypatch.setenv("POLL", "0.1")
    return cloud
