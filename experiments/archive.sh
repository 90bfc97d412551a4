#!/usr/bin/env bash
# Keeps the finished points of a sweep, without checkpoints, so that tables and figures are drawn again without training.
# $1: EXPERIMENT-SCALE or runs/EXPERIMENT-SCALE. Written: experiments/figures/EXPERIMENT-SCALE.tar.xz;
# mkdir -p runs; tar -xf experiments/figures/EXPERIMENT-SCALE.tar.xz -C runs brings them back.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "${BASH_SOURCE[0]}")/.."
name="$(basename -- "${1:-}")"
archive="$PWD/experiments/figures/$name.tar.xz"
mkdir -p runs
cd runs
finished=("$name"/*/result.json)
if [ -z "$name" ] || [ "${#finished[@]}" -eq 0 ]; then
    echo "error: '$name': expected EXPERIMENT-SCALE, a folder of runs/ with a finished point; there: $(ls | tr '\n' ' ')" >&2
    exit 2
fi
files=()
for result in "${finished[@]}"; do
    point="$(dirname "$result")"
    files+=("$point"/*.json "$point"/*.jsonl "$point"/*.npz "$point"/milestone_evaluations/*.json)
done
trap 'rm -f "$archive.partial"' EXIT
tar --create --sort=name --owner=0 --group=0 --numeric-owner -- "${files[@]}" | xz -9e > "$archive.partial"
mv "$archive.partial" "$archive"
echo "written: experiments/figures/$name.tar.xz, ${#finished[@]} points"
