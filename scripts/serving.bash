# Starts and stops a server for the scripts that source this; needs $bin, the environment's programs.

# start_server ENGINE [OPTION...]: returns when it serves; sets $address.
start_server() {
    local line
    server_files="$(mktemp -d)"
    mkfifo "$server_files/output"
    "$bin/trtspec" serve "$@" --port 0 >"$server_files/output" 2>&1 &
    server_pid=$!
    exec 3<"$server_files/output"
    while IFS= read -r -u 3 -t 300 line; do
        printf 'server: %s\n' "$line"
        if [[ "$line" =~ ^SERVING\ ([^ ]+:[0-9]+) ]]; then
            address="${BASH_REMATCH[1]}"
            # Somebody must go on reading, or the server would block on a full pipe.
            cat <&3 >"$server_files/log" &
            log_pid=$!
            exec 3<&-
            return 0
        fi
    done
    echo "the server did not start" >&2
    return 1
}

# stop_server: lets it drain, and returns its exit status. Safe where none runs.
stop_server() {
    local status=0
    [[ -n "${server_pid:-}" ]] || return 0
    kill -TERM "$server_pid" 2>/dev/null || true
    # A server that hangs must not outlive the script.
    timeout 60 tail --sleep-interval=0.1 --pid="$server_pid" --follow /dev/null || kill -KILL "$server_pid"
    wait "$server_pid" || status=$?
    [[ -z "${log_pid:-}" ]] || kill "$log_pid" 2>/dev/null || true
    [[ $status == 0 ]] || { cat "$server_files/log" 2>/dev/null || true; echo "the server ended with $status"; } >&2
    rm -rf "$server_files"
    server_pid=
    return "$status"
}
