# One command after the other. When the pod is told to end, its command gets SIGTERM and the others are skipped.
stopping= code=0 child=
trap 'stopping=1 code=143; [ -z "$child" ] || kill -TERM "$child"' TERM
run() {{
    [ -z "$stopping" ] || return
    child=
    timeout --kill-after={grace} {limit} "$@" &
    child=$!
    [ -z "$stopping" ] || kill -TERM "$child"  # the pod was told before it knew its child
    while kill -0 "$child" 2>/dev/null; do wait "$child"; done
    wait "$child" || code=$?
}}
