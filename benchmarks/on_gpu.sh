#!/usr/bin/env bash
# What needs a GPU, by parts: tests, records, explorations. Nothing is installed, nothing but OUT and WEIGHTS is written.
#
#   bash benchmarks/on_gpu.sh [PART ...]       # without names: tests engine long large sampling start models kernels
#
#   PYTHON       the interpreter; packages that it lacks travel in PYTHONPATH
#   OUT          where records and log.txt go; default benchmarks/results/new
#   LIMIT_S      seconds for all parts together; a part that has its own limit gets what is left
#   TOKENIZER    a folder with a tokenizer for random weights; default: random words
#   WEIGHTS      a folder that keeps random weights; default: a passing one in memory
#   SMOKE        1: tiny models on whatever there is, and no kernels
#   KERNELS      what the part sanitize runs, by the names in sanitize.py; default: all
#
# A wrong result ends the run. Whatever is cut or fails otherwise is named at the end, and its lines stay.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3} LIMIT_S=${LIMIT_S:-3600} SMOKE=${SMOKE:-}
mkdir -p "${OUT:=benchmarks/results/new}" && OUT=$(cd "$OUT" && pwd)
exec > >(tee -a "$OUT/log.txt") 2>&1
export PYTHONPATH="$PWD/src:$PWD/kernels${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
if [ -z "${WEIGHTS:-}" ]; then
    in_memory=/dev/shm && [ -d $in_memory ] || in_memory=$OUT
    WEIGHTS=$(mktemp -d "$in_memory/nanofn.XXXXXX") && trap 'rm -rf "$WEIGHTS"' EXIT
fi
mkdir -p "$WEIGHTS"

made=(--checkpoints "$WEIGHTS" ${TOKENIZER:+--tokenizer "$TOKENIZER"})
tiny=() tiny_models=(qwen3-0.6b qwen3-8b qwen3-14b qwen3-30b-a3b qwen3-32b --files qwen3-0.6b qwen3-8b qwen3-14b)
if [ -n "$SMOKE" ]; then  # the last of two equal options counts
    small=(--smoke --repeats 1 --steps 2 --block-size 16 --ceilings 100 1)
    tiny=("${small[@]}" --model tiny --max-model-len 512) made=(--checkpoints "$WEIGHTS")
    tiny_models=(tiny tiny-mixture --files tiny "${small[@]}" --max-num-seqs 4 --max-model-len 64)
fi

failed=()
run() {  # seconds, command: no longer than that, and not past LIMIT_S
    local limit=$1 left=$((LIMIT_S - SECONDS)) begin=$SECONDS status=0
    shift
    ((limit < left)) || limit=$left
    if ((limit < 5)); then echo "== no time left"; return 124; fi
    timeout --signal=INT --kill-after=10 "$limit" "$@" || status=$?
    echo "== $part: status $status after $((SECONDS - begin)) s, at $SECONDS s"
    return $status
}
times() { run "$@" || failed+=("$part"); }
checks() {  # as run; only a command that had the time may end everything
    local status=0
    run "$@" || status=$?
    case $status in
        0) ;;
        124 | 137) failed+=("$part") ;;
        *) echo "== wrong: $part"; exit 1 ;;
    esac
}
generate() { times "$1" "$PYTHON" benchmarks/bench_generate.py "${@:2}" "${made[@]}" --out "$OUT" "${tiny[@]}"; }
no_gpu() { [ -n "$SMOKE" ] && echo "== $part: needs a GPU"; }
ops() {  # every test of a kernel, also what else runs in the interpreter; most of the time is compiling, so files run side by side
    no_gpu && return
    checks 300 bash -c 'grep -l DEVICE property_tests/ops/test_*.py | xargs -P 11 -n 1 "$0" -m pytest -W default -q --tb=short' "$PYTHON"
}
kernel() {  # name, seconds: a record, and whether the results that it timed were right
    no_gpu && return
    checks "$2" "$PYTHON" "benchmarks/bench_$1.py" "$OUT/$1.jsonl"
    checks 20 "$PYTHON" benchmarks/wrong_lines.py "$OUT/$1.jsonl"
}
explore() {
    no_gpu && return
    checks "$1" "$PYTHON" benchmarks/explore/explore_linear.py "$OUT/linear_explored.jsonl" "${@:2}"
}
sanitize() {  # first without a tool, which compiles what runs under them; each tensor an allocation of its own
    no_gpu && return
    local -x PYTORCH_NO_CUDA_MEMORY_CACHING=1
    checks 150 "$PYTHON" benchmarks/sanitize.py --apart "$@"
    times 300 "$PYTHON" benchmarks/cuda_tools.py sanitize "$OUT" "$@"
}
ncu() {
    no_gpu && return
    times 90 "$PYTHON" benchmarks/ncu_launches.py
    times 110 "$PYTHON" benchmarks/cuda_tools.py ncu "$OUT"
}

run_part() {
    case $1 in
        tests) checks 200 bash .ci/gpu -q -x --tb=short property_tests/llm/test_gpu.py ;;
        all-tests) checks 900 bash .ci/gpu -q --tb=short ;;
        ops) ops ;;
        engine) generate 240 standard batch1 shared-prefix --model qwen3-0.6b --idle --repeats 3 --max-model-len 4096 ;;
        long) generate 120 long-context --model qwen3-0.6b --idle --repeats 3 --max-model-len 17024 ;;
        large) generate 180 standard batch1 --model qwen3-8b --load-format dummy --repeats 3 --max-model-len 4096 ;;
        sampling) generate 240 sampling --model qwen3-0.6b --idle --repeats 3 --max-model-len 4096 ;;
        start) generate 150 start-up --model qwen3-0.6b --repeats 2 --max-model-len 4096 ;;
        start-phases) times 120 "$PYTHON" benchmarks/start_phases.py ${SMOKE:+--model tiny} "${made[@]}" --out "$OUT" ;;
        models) times 300 "$PYTHON" benchmarks/bench_models.py "${tiny_models[@]}" --folder "$WEIGHTS" --out "$OUT" ;;
        kernels) run_parts sample adjust decode linear ;;
        sample) kernel sample 120 ;;
        adjust) kernel adjust 60 ;;
        decode) kernel paged_decode 150 ;;
        linear) kernel linear 150 ;;
        prefill) kernel paged_prefill 90 ;;
        store) kernel norm_rope_store 60 ;;
        sanitize) sanitize ${KERNELS:-} ;;
        ncu) ncu ;;
        explore) explore 180 --seconds 60 ;;
        explore-specialised) explore 60 --rows 256 --specialised --seconds 12 ;;
        *) echo "there is no part $1; benchmarks/README.md has their names"; exit 2 ;;
    esac
}
run_parts() {
    for part in "$@"; do
        echo "== $part, at $SECONDS s"
        run_part "$part"
    done
}

[ $# -gt 0 ] || set -- tests engine long large sampling start models kernels
run_parts "$@"
echo "== all took $SECONDS s${failed:+; cut or failed: ${failed[*]}}"
[ ${#failed[@]} -eq 0 ]
