#!/usr/bin/env bash
# On a host, in the project's copy: runs a command that outlives the connection which started it.
#   bash mlm/launch/cluster/host.sh start SECONDS WORD...   ends an earlier command, then starts this one, with a time limit
#   bash mlm/launch/cluster/host.sh stop                    sends SIGTERM, and waits until the command has ended
#   bash mlm/launch/cluster/host.sh state                   prints none, running, lost (ended without an exit code) or the exit code
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
export PATH="$PWD/.venv/bin:$PATH"
run="$PWD.run"  # next to the copy: the command's process id, output and exit code
mkdir -p "$run"

alive() { [ -s "$run/pid" ] && pgrep --session "$(cat "$run/pid")" >/dev/null; }

stop() {
    local seconds=0
    while alive; do
        if [ "$seconds" -lt 120 ]; then pkill -TERM --session "$(cat "$run/pid")" || true
        else pkill -KILL --session "$(cat "$run/pid")" || true; fi
        sleep 1
        seconds=$((seconds + 1))
    done
}

case "${1:-}" in
start)
    limit=$2
    shift 2
    stop
    rm -f "$run/exit"
    unset "${!MEGASCALE_@}"  # may be an earlier slice's; the host's metadata has the current ones
    # shellcheck disable=SC2016  # the inner shell's own variables
    setsid bash -c 'run=$0 limit=$1; shift; timeout --kill-after=120 "$limit" "$@"; echo $? >"$run/ended"
                    mv "$run/ended" "$run/exit"' "$run" "$limit" "$@" >>"$run/log" 2>&1 </dev/null &
    echo $! >"$run/pid"
    echo started
    ;;
stop) stop ;;
state)
    if [ -e "$run/exit" ]; then cat "$run/exit"
    elif alive; then echo running
    elif [ -e "$run/pid" ]; then echo lost
    else echo none; fi
    ;;
*)
    echo "error: ${1:-nothing}: expected start, stop or state" >&2
    exit 2
    ;;
esac
