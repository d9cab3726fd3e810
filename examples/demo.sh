#!/usr/bin/env bash
# The main job from nothing: a sample corpus, a tokenizer, the checks, prepared data, a classifier that learns, measurements.
# ROWS and OUT may be set: ROWS=1000000 OUT=/data/demo make demo
set -euo pipefail
ROWS=${ROWS:-20000}
OUT=${OUT:-demo}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export DATASET_TEXT_COLUMN=text RUNTIME_REPORT_DIR="$OUT/reports"
step() { printf '\n\033[1m%s\033[0m\n' "== $*"; }
[ -t 1 ] && [ -z "${NO_COLOR:-}" ] || step() { printf '\n== %s\n' "$*"; }

step "1/6  a corpus of $ROWS short Korean and English business texts with 280 labels"
ftcli sample-data --output "$OUT/corpus" --rows "$ROWS" --overwrite

step "2/6  a fast tokenizer for it"
[ -e "$OUT/tokenizer" ] || ftcli train-tokenizer "$OUT/corpus/train.jsonl" --kind bpe --vocab-size 8000 --output "$OUT/tokenizer"

step "3/6  tokenize"
ftcli tokenize "$OUT/corpus" --label-column label --tokenizer-path "$OUT/tokenizer" --max-length 320 --output-dir "$OUT/prepared" --overwrite

run=(--mode classify --dataset "$OUT/prepared" --tokenizer-path "$OUT/tokenizer" --model-config "$here/qwen3-tiny.json"
  --num-train-epochs 1 --learning-rate 1e-3 --per-device-train-batch-size 32 --per-device-eval-batch-size 64
  --warmup-steps "$((ROWS / 400))" --lr-scheduler-type cosine)

step "4/6  verify: can this run learn?"
ftcli verify "${run[@]}"

step "5/6  train a small Qwen3 classifier"
ftcli train "${run[@]}" --output-dir "$OUT/run" --overwrite

step "6/6  benchmark: the engines, on the same rows"
ftcli benchmark tokenize --dataset "$OUT/corpus/train.jsonl" --tokenizer-path "$OUT/tokenizer" --rows 10000 --repeats 5

step "The reports"
find "$OUT" -name '*.html' | sort

step "What it came to"
python - "$OUT/run/report.json" <<'PYTHON'
import json
import sys

metrics = json.load(open(sys.argv[1]))["metrics"]
print(f"held-out accuracy {metrics['eval_accuracy']:.1%}, chance {metrics['chance_accuracy']:.1%}")
PYTHON
