set -uo pipefail  # and no -e: what fails is tried again
state="${BASH_SOURCE[0]%.sh}"  # a folder: the state of each command, and the output of this script
poll=${POLL:-60}               # seconds between two queries

resources() { gcloud compute tpus queued-resources "$@" --zone="$ZONE" ${PROJECT:+--project="$PROJECT"} --quiet; }

list_resources() { resources list --filter="name ~ /$NAME-$1\$" --format='value(name.basename(), state.state)'; }

# arguments: index of a command, worker of each slice (or all), shell command
run_on() { resources ssh "$NAME-$1" --node="$2" --worker="$2" --command="$3" "${SSH[@]}"; }

set_state() {  # of a command: queued, running, done or failed, and the reason
    [ "$(cat "$state/$1" 2>/dev/null)" != "$2" ] || [ -n "${3:-}" ] || return 0
    echo "$2" >"$state/.$1" && mv "$state/.$1" "$state/$1"
    echo "$(date '+%F %T') command $1: $2${3:+: $3}"
}

create() {
    local nodes=(--node-id="$NAME-$1")
    [ "$SLICES" = 1 ] || nodes=(--node-count="$SLICES" --node-prefix="$NAME-$1")
    resources create "$NAME-$1" "${nodes[@]}" "${CREATE[@]}" --async
}

delete() { resources delete "$NAME-$1" --force; }

start() {  # copies the code to all hosts and starts the command there; fails unless all hosts confirm
    local output
    resources scp "$state/code.tar.gz" "$NAME-$1:code.tar.gz" --node=all --worker=all "${SSH[@]}" || return
    output=$(run_on "$1" all "mkdir -p mlm && tar -xzf code.tar.gz -C mlm && cd mlm && { $INSTALL; } &&
        bash mlm/launch/cluster/host.sh start $LIMIT ${COMMANDS[$1]}")
    echo "$output"
    [ "$(grep -c '^started$' <<<"$output")" = "$HOSTS" ]
}

run_locally() {  # a command on this machine
    set_state "$1" running
    (cd "$SUBMIT_FOLDER" && PYTHONPATH=$CODE PYTHONSAFEPATH=1 eval "exec ${COMMANDS[$1]}") 9>&- &
    trap 'kill $!; wait $!; exit 143' TERM
    if wait $!; then set_state "$1" "done"; else set_state "$1" failed; fi
}

run_on_tpu() {  # a command, from the request of its TPU to its deletion
    local now code restart="" silent=0 failures=0 end=""
    set_state "$1" queued
    while [ -z "$end" ]; do
        now=$(list_resources "$1") || now="? UNKNOWN"
        case "${now##*[[:space:]]}" in
        "") create "$1" || silent=$((silent + 1)) ;;
        SUSPENDED) set_state "$1" queued "preempted: requested again" && restart="" && delete "$1" && continue ;;
        FAILED) set_state "$1" queued "not available: requested again" && delete "$1" && failures=$((failures + 1)) ;;
        ACTIVE)
            code=$(run_on "$1" 0 "[ -d mlm ] && bash mlm/mlm/launch/cluster/host.sh state || echo none" | tail -n 1)
            case "${restart:-$code}" in
            running) set_state "$1" running && silent=0 ;;
            0) run_on "$1" all "bash mlm/mlm/launch/cluster/host.sh state" | grep -qx running || end="done" ;;
            none)
                if start "$1"; then set_state "$1" running && restart="" silent=0
                else restart=none silent=$((silent + 1)); fi
                ;;
            124 | 143) restart=none && set_state "$1" queued "its time was up, or its host went down ($code)" ;;
            lost | [1-9]*)
                restart=none failures=$((failures + 1))
                set_state "$1" queued "it ended ($code), failure $failures"
                run_on "$1" 0 "tail -n 50 mlm.run/log"
                ;;
            *) silent=$((silent + 1)) ;;
            esac
            ;;
        esac
        if [ "$silent" -ge 10 ]; then
            set_state "$1" queued "not available, or its hosts do not answer or start: requested again"
            delete "$1"
            restart="" silent=0 failures=$((failures + 1))
        fi
        [ "$failures" -le "$RESTARTS" ] || end="failed"
        [ -n "$end" ] || sleep "$poll" 9>&-
    done
    until now=$(list_resources "$1") && [ -z "$now" ]; do delete "$1" || sleep "$poll" 9>&-; done
    set_state "$1" "$end"
}

run_all() {
    exec 9>"$state/lock"
    flock --nonblock 9 || { echo "another process runs these commands already: bash $0 states"; exit 0; }
    local index other log="${state%/*}" runner=run_on_tpu
    [ "$SLICES" != 0 ] || runner=run_locally
    for index in "${!COMMANDS[@]}"; do [ "$(cat "$state/$index" 2>/dev/null)" = "done" ] || set_state "$index" queued; done
    trap 'kill $(jobs -p) 2>/dev/null; exit 143' TERM
    tar -czf "$state/code.tar.gz" -C "$CODE" . ${FILES[0]:+-C "$SUBMIT_FOLDER"} "${FILES[@]}" || exit 1
    echo $$ >"$state/pid"
    for other in "${AFTER[@]}"; do
        while [ -n "$(bash "$other" states 9>&- || echo unknown)" ]; do sleep "$poll" 9>&- & wait $!; done
    done
    for index in "${!COMMANDS[@]}"; do
        [ "$(cat "$state/$index")" = "done" ] && continue
        while [ "$(jobs -rp | wc -l)" -ge "$RUNNING" ]; do wait -n; done
        "$runner" "$index" >>"$log/$index.log" 2>&1 &
    done
    wait
    ! grep -qx failed "$state"/[0-9]*
}

states() {  # as the process that runs the commands records them, else as Google reports them
    if ! flock --nonblock "$state/lock" true; then
        grep -Hx -e queued -e running "$state"/[0-9]* | sed "s|.*/\([0-9]*\):|\1 |"
        return 0
    fi
    list_resources '[0-9]+' | sed -E "s/^$NAME-([0-9]+)[[:space:]]+/\1 /; s/ ACTIVE\$/ running/; s/ [A-Z_]+\$/ queued/"
}

cancel() {
    local name now
    if ! flock --nonblock "$state/lock" true; then
        kill "$(cat "$state/pid")"
        flock --wait=900 "$state/lock" true  # until its pending calls have returned
    fi
    while read -r name now; do
        { [ "$now" != ACTIVE ] || run_on "${name##*-}" all "bash mlm/mlm/launch/cluster/host.sh stop"
          delete "${name##*-}"; } &
    done < <(list_resources '[0-9]+')
    wait
    [ -z "$(list_resources '[0-9]+')" ]
}

mkdir -p "$state"
case "${1:-run_all}" in
run_all | states | cancel) "${1:-run_all}" ;;
*) echo "error: $1: expected states, cancel or nothing" >&2; exit 2 ;;
esac
