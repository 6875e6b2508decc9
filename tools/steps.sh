# Helpers of quickstart and check (sourced): steps that write a log, show progress and say why they failed.
# Expects `root`, the clone's folder.
# shellcheck shell=bash disable=SC2154

logs=$root/build/logs
follower=
trap stop_following EXIT

stop_following() {
    [[ -n $follower ]] || return 0
    kill "$follower" 2> /dev/null
    wait "$follower" 2> /dev/null
    follower=
    if [[ -t 1 ]]; then printf '\r\033[K'; fi
}

# The last line of a log, cut to the terminal: one line that is rewritten, or where there is no terminal one every 30 s.
follow() {
    local log=$1 start=$SECONDS said=0 line seconds
    while sleep 1 > /dev/null 2>&1; do
        seconds=$((SECONDS - start))
        line=$(tail -c 400 "$log" 2> /dev/null | tr '\r' '\n' | grep -av '^[[:space:]]*$' | tail -n 1 | tr -cd '[:print:]')
        if [[ -t 1 ]]; then
            printf '\r\033[K   %d s  %s' "$seconds" "${line:0:90}"
        elif ((seconds - said >= 30)); then
            said=$seconds
            printf '   %d s  %s\n' "$seconds" "${line:0:110}"
        fi
    done
}

# step NAME COMMAND...: runs COMMAND, its output in $logs/NAME.log; leaves step_status and step_seconds. A function given
# as COMMAND stops at its first failure. (Not for use in a condition: there bash would ignore such failures.)
step() {
    local name=$1 start=$SECONDS
    shift
    mkdir -p "$logs"
    follow "$logs/$name.log" &
    follower=$!
    set +e
    (
        set -euo pipefail
        "$@"
    ) > "$logs/$name.log" 2>&1 < /dev/null
    step_status=$?
    stop_following
    step_seconds=$((SECONDS - start))
}

# explain NAME: the end of a failed step's log and where the whole is.
explain() {
    tail -n 15 "$logs/$1.log" | cut -c 1-300 | sed 's/^/   | /'
    echo "   the whole log: $logs/$1.log"
}

# The folder of a cargo of at least 1.87 goes first on PATH, so that its rustc is found with it. Fails without one.
use_cargo() {
    local cargo
    for cargo in "$(command -v cargo)" "$HOME/.cargo/bin/cargo" /usr/bin/cargo; do
        if [[ -x $cargo ]] && new_enough "$cargo"; then
            export PATH="${cargo%/*}:$PATH"
            return 0
        fi
    done
    return 1
}

new_enough() {
    local major minor
    IFS=. read -r major minor _ < <("$1" --version 2> /dev/null | cut -d ' ' -f 2)
    ((${major:-0} > 1 || (${major:-0} == 1 && ${minor:-0} >= 87)))
}
