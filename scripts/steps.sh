# What ./check does once there are Python packages, a browser and Java; it measures the CPU time of
# everything below.
#   bash scripts/steps.sh [fast | nightly [PART] [--seed N]]
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"

# pytest exits with a code of its own on Ctrl-C, after which bash would begin the next step.
trap 'trap - INT; kill -INT $$' INT

failed=()
step() {
    local label=$1 begin=$SECONDS
    shift
    say "check: $label ..."
    if "$@"; then
        say "check: $label: passed in $((SECONDS - begin)) s"
    else
        say "check: $label: FAILED after $((SECONDS - begin)) s"
        failed+=("$label")
    fi
}

# run_tests SECONDS [OPTIONS OF PYTEST]: three processes share the tests, because each waits for a
# third of its time; what shares something costly stays together (tests/costs.py). A crash of one ends
# the run: pytest-xdist would repeat the test that crashed, or hang. A test that takes longer than
# SECONDS hangs: what each of its threads was doing is printed, and the run ends.
run_tests() {
    local limit_s=$1
    shift
    .venv/bin/python -m pytest -q -n 3 --dist loadgroup --no-loadscope-reorder \
        --max-worker-restart 0 --durations=10 -o faulthandler_timeout="$limit_s" \
        -o faulthandler_exit_on_timeout=true "$@"
}

# run_night [PART] [--seed N]: the parts one after the other, with a seed for all that is random.
run_night() {
    local known parts=() part seed
    known=$(.venv/bin/python -c 'from tests.nightly import PARTS; print(*PARTS)') ||
        give_up "cannot read the parts of a night from tests/nightly.py"
    seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
    while [ $# -gt 0 ]; do
        if [ "$1" = --seed ] && [[ "${2-}" =~ ^[0-9]+$ ]]; then
            seed=$2
            shift 2
        elif [[ " $known " = *" $1 "* ]]; then
            parts+=("$1")
            shift
        else
            give_up "usage: ./check nightly [PART] [--seed N], where PART is one of: $known"
        fi
    done
    [ ${#parts[@]} -gt 0 ] || read -ra parts <<<"$known"
    say "SEED=$seed"
    for part in "${parts[@]}"; do
        STILLFRAME_NIGHTLY_SEED=$seed STILLFRAME_NIGHTLY_PART=$part step "night: $part" \
            run_tests $((3 * 3600)) -m "nightly(part='$part')" --randomly-seed="$seed" --hypothesis-seed="$seed"
    done
}

if [ "${1-}" = nightly ]; then
    shift
    run_night "$@"
else
    step "format" .venv/bin/ruff format --check --quiet .
    step "lint" .venv/bin/ruff check --quiet --output-format concise .
    (failed=() && step "types" .venv/bin/mypy && [ ${#failed[@]} -eq 0 ]) &
    types=$!
    if [ "${1-}" = fast ]; then
        step "tests" run_tests 600 -m "not slow and not spark"
    else
        # pytest rewrites the assertions of each test file, and keeps the result. Each of the three
        # processes would do so at the same time; an error is one of the tests, too.
        .venv/bin/python -m pytest --collect-only -q >/dev/null 2>&1 &
        set_up_tests
        wait $!
        step "tests" run_tests 600
    fi
    wait $types || failed+=("types")
fi

took=$((EPOCHSECONDS - CHECK_BEGAN))
if [ ${#failed[@]} -gt 0 ]; then
    printf 'check: FAILED: %s (%d s)\n' "$(IFS=,; echo "${failed[*]}")" "$took"
    exit 1
fi
printf 'check: everything passed (%d s)\n' "$took"
