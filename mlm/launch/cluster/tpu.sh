set -uo pipefail  # and no -e: what fails is tried again
state="${BASH_SOURCE[0]%.sh}"  # a folder: what became of each command, and what is printed here
poll=${POLL:-60}               # seconds between two looks

tpus() { gcloud compute tpus queued-resources "$@" --zone="$ZONE" ${PROJECT:+--project="$PROJECT"} --quiet; }

there() { tpus list --filter="name ~ /$NAME-$1\$" --format='value(name.basename(), state.state)'; }

# of a command, a worker of each slice (or all), and what to do there
on() { tpus ssh "$NAME-$1" --node="$2" --worker="$2" --command="$3" "${SSH[@]}"; }

say() {  # of a command: queued, running, done or failed, and why
    [ "$(cat "$state/$1" 2>/dev/null)" != "$2" ] || [ -n "${3:-}" ] || return 0
    echo "$2" >"$state/.$1" && mv "$state/.$1" "$state/$1"
    echo "$(date '+%F %T') command $1: $2${3:+: $3}"
}

create() {
    local nodes=(--node-id="$NAME-$1")
    [ "$SLICES" = 1 ] || nodes=(--node-count="$SLICES" --node-prefix="$NAME-$1")
    tpus create "$NAME-$1" "${nodes[@]}" "${CREATE[@]}" --async
}

remove() { tpus delete "$NAME-$1" --force; }

start() {  # copies the code to all hosts and starts the command there; fails unless every one of them says so
    local said
    tpus scp "$state/code.tar.gz" "$NAME-$1:code.tar.gz" --node=all --worker=all "${SSH[@]}" || return
    said=$(on "$1" all "mkdir -p mlm && tar -xzf code.tar.gz -C mlm && cd mlm && { $INSTALL; } &&
        bash mlm/launch/cluster/host.sh start $LIMIT ${COMMANDS[$1]}")
    echo "$said"
    [ "$(grep -c '^started$' <<<"$said")" = "$HOSTS" ]
}

here() {  # a command on this machine
    say "$1" running
    (cd "$PLACE" && PYTHONPATH=$CODE PYTHONSAFEPATH=1 eval "exec ${COMMANDS[$1]}") 9>&- &
    trap 'kill $!; wait $!; exit 143' TERM
    if wait $!; then say "$1" "done"; else say "$1" failed; fi
}

follow() {  # a command, from asking for its TPU to giving that back
    local now code again="" mute=0 failures=0 end=""
    say "$1" queued
    while [ -z "$end" ]; do
        now=$(there "$1") || now="? UNKNOWN"
        case "${now##*[[:space:]]}" in
        "") create "$1" || mute=$((mute + 1)) ;;
        SUSPENDED) say "$1" queued "preempted: asked for again" && again="" && remove "$1" && continue ;;
        FAILED) say "$1" queued "not to be had: asked for again" && remove "$1" && failures=$((failures + 1)) ;;
        ACTIVE)
            code=$(on "$1" 0 "[ -d mlm ] && bash mlm/launch/cluster/host.sh state || echo none" | tail -n 1)
            case "${again:-$code}" in
            running) say "$1" running && mute=0 ;;
            0) on "$1" all "bash mlm/launch/cluster/host.sh state" | grep -qx running || end="done" ;;
            none) if start "$1"; then say "$1" running && again="" mute=0; else again=none mute=$((mute + 1)); fi ;;
            124 | 143) again=none && say "$1" queued "its time was up, or its host went down ($code)" ;;
            lost | [1-9]*)
                again=none failures=$((failures + 1))
                say "$1" queued "it ended ($code), failure $failures"
                on "$1" 0 "tail -n 50 mlm.run/log"
                ;;
            *) mute=$((mute + 1)) ;;
            esac
            ;;
        esac
        if [ "$mute" -ge 10 ]; then
            say "$1" queued "it cannot be had, or its hosts do not answer, or cannot start: another is asked for"
            remove "$1"
            again="" mute=0 failures=$((failures + 1))
        fi
        [ "$failures" -le "$RESTARTS" ] || end="failed"
        [ -n "$end" ] || sleep "$poll" 9>&-
    done
    until now=$(there "$1") && [ -z "$now" ]; do remove "$1" || sleep "$poll" 9>&-; done
    say "$1" "$end"
}

work() {
    exec 9>"$state/lock"
    flock --nonblock 9 || { echo "these commands are being followed already: bash $0 states"; exit 0; }
    local number other log="${state%/*}" how=follow
    [ "$SLICES" != 0 ] || how=here
    for number in "${!COMMANDS[@]}"; do [ "$(cat "$state/$number" 2>/dev/null)" = "done" ] || say "$number" queued; done
    trap 'kill $(jobs -p) 2>/dev/null; exit 143' TERM
    tar -czf "$state/code.tar.gz" -C "$CODE" . ${FILES[0]:+-C "$PLACE"} "${FILES[@]}" || exit 1
    echo $$ >"$state/pid"
    for other in "${AFTER[@]}"; do
        while [ -n "$(bash "$other" states 9>&- || echo unknown)" ]; do sleep "$poll" 9>&- & wait $!; done
    done
    for number in "${!COMMANDS[@]}"; do
        [ "$(cat "$state/$number")" = "done" ] && continue
        while [ "$(jobs -rp | wc -l)" -ge "$RUNNING" ]; do wait -n; done
        "$how" "$number" >>"$log/$number.log" 2>&1 &
    done
    wait
    ! grep -qx failed "$state"/[0-9]*
}

states() {  # of those who follow them, or where nobody does, of Google's
    if ! flock --nonblock "$state/lock" true; then
        grep -Hx -e queued -e running "$state"/[0-9]* | sed "s|.*/\([0-9]*\):|\1 |"
        return 0
    fi
    there '[0-9]+' | sed -E "s/^$NAME-([0-9]+)[[:space:]]+/\1 /; s/ ACTIVE\$/ running/; s/ [A-Z_]+\$/ queued/"
}

cancel() {
    local name now
    if ! flock --nonblock "$state/lock" true; then
        kill "$(cat "$state/pid")"
        flock --wait=900 "$state/lock" true  # until calls on their way have arrived
    fi
    while read -r name now; do
        { [ "$now" != ACTIVE ] || on "${name##*-}" all "bash mlm/launch/cluster/host.sh stop"; remove "${name##*-}"; } &
    done < <(there '[0-9]+')
    wait
    [ -z "$(there '[0-9]+')" ]
}

mkdir -p "$state"
case "${1:-work}" in
work | states | cancel) "${1:-work}" ;;
*) echo "error: $1: expected states, cancel or nothing" >&2; exit 2 ;;
esac
