"""gcloud, as far as launch/cluster/tpu.sh calls it: keeps its calls, queued resources and their hosts in a folder."""
import os
from pathlib import Path

# $CLOUD: calls, resources/NAME/{state, nodes, host-*/}, preempt/NAME (it is preempted once), missing (hosts that do not
# answer the first time). A list brings each resource one state further.
GCLOUD = r"""#!/usr/bin/env bash
set -euo pipefail
exec 8>>"$CLOUD/lock" && flock 8  # one call at a time changes anything
echo "$*" >>"$CLOUD/calls"
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


def install(path: Path, monkeypatch) -> Path:
    """Puts gcloud on PATH, with a cloud in a folder, which is returned."""
    cloud, tools = path / "cloud", path / "tools"
    for folder in (cloud / "resources", cloud / "preempt", tools):
        folder.mkdir(parents=True)
    (tools / "gcloud").write_text(GCLOUD)
    (tools / "gcloud").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CLOUD", str(cloud))
    monkeypatch.setenv("POLL", "0.1")
    return cloud
