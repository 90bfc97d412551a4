#!/usr/bin/env bash
# Makes tables again from nothing and says what differs from the committed figures, and by how many standard errors.
# $1: quick (the scales of that name, at most 15 minutes on two CPU cores), text (the scales of that name, ten hours by
# estimate), all, NAME (all scales of an experiment that have figures) or NAME-SCALE. Each sweep is that of the command in
# its file of figures, which also names the texts that it reads, and trains in runs/reproduce/NAME-SCALE; a second call
# goes on with what is there. A scale without figures is trained, and its table printed.
# The scales on text read folders below texts: mkdir texts; ln -s FOLDER/* texts. They are wikitext-2, textbooks-en,
# multi30k, sst2, mrpc, stsb, ud_ewt and ud_pos (UD-EWT again: ln -s ud_ewt texts/ud_pos); masking_rate-text has other
# paths: ln -s texts tasks; ln -s texts/wikitext-2 texts/blimp .
# Exit code 1: a figure differs by more than 3 standard errors, or a sweep failed.
# WRITE=1: writes the figures, and the parts of results/*.md that show them, in place of comparing.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/environment.sh ""
part="${1:-quick}" files=()
shopt -s nullglob extglob
case "$part" in
    all) files=(experiments/figures/*.json) ;;
    quick) files=(experiments/figures/*-quick.json) ;;
    text)
        for file in $(grep -l '^    "text": ' experiments/*.py); do
            files+=("experiments/figures/$(basename "$file" .py)-text.json")
        done
        ;;
    *)
        files=(experiments/figures/@("$part"|"$part"-*).json)
        if [ "${#files[@]}" -eq 0 ] && [[ "$part" == *-* ]] && [ -f "experiments/${part%-*}.py" ]; then
            files=("experiments/figures/$part.json")
        fi
        ;;
esac
if [ "${#files[@]}" -eq 0 ]; then
    known="$(basename -s .json -a experiments/figures/*.json | tr '\n' ' ')"
    echo "error: PART = '$part': expected quick, text, all, an experiment, or one of $known" >&2
    exit 2
fi
read_words='import json, shlex, sys
command = json.load(open(sys.argv[1])).get(sys.argv[2], "")
print(*shlex.split(command)[3:], sep="\0", end="\0")  # what follows mlm sweep run, or mlm evaluate and the runs'
pages="$(printf ",%s" experiments/results/*.md)"
status=0
for file in "${files[@]}"; do
    name="$(basename "$file" .json)"
    sweep=("experiments/${name%-*}.py" "--scale=${name##*-}") evaluate=("")
    if [ -f "$file" ]; then
        mapfile -d "" -t sweep < <(.venv/bin/python -c "$read_words" "$file" command)
        mapfile -d "" -t evaluate < <(.venv/bin/python -c "$read_words" "$file" evaluate)
    fi
    sweep+=("workdir=runs/reproduce/$name")
    .venv/bin/python -m mlm sweep run "${sweep[@]}" --workers=2 || { status=1; continue; }
    if [ -n "${evaluate[0]}" ]; then # it names the runs that it does not suit, and leaves them out
        .venv/bin/python -m mlm evaluate "runs/reproduce/$name"/*/ "${evaluate[@]}"
    fi
    [ -f "$file" ] || [ -n "${WRITE:-}" ] || continue
    .venv/bin/python -m mlm sweep compare "${sweep[@]}" ${WRITE:+--write --pages="${pages#,}"} || status=1
done
exit "$status"
