#!/usr/bin/env bash
# What `make quickstart` runs. Argument: the kernrl command.
set -euo pipefail

kernrl=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "== what this machine can do"
"$kernrl" doctor

echo "== 20 fusion tasks, with worked Triton solutions"
"$kernrl" tasks generate --count 20 --seed 1 --out "$work/tasks"
"$kernrl" tasks stats "$work/tasks"

echo "== one of them"
"$kernrl" tasks show "$work/tasks#1"

echo "== is its first worked solution right, and how fast is it?"
first_solution='import json, sys; print(json.load(sys.stdin)["solutions"][0]["triton_code"])'
"$kernrl" tasks show "$work/tasks#1" --json | "$(dirname "$kernrl")/python" -c "$first_solution" |
  "$kernrl" verify "$work/tasks#1" -
