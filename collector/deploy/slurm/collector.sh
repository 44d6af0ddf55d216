#!/bin/bash
# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
# Runs one Collector until SIGURG, then waits until its queue is empty, 20 s at most: the disk of the node is emptied after the job.
# Not SIGTERM: Slurm sends signals to all processes of a step, and the Collector ends at SIGTERM, but ignores SIGURG.
# train.sbatch starts it: collector.sh agent|gateway
set -u
umask 077

ROLE=$1
STATE=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/otelcol-$SLURM_JOB_ID-$ROLE
mkdir -p "$STATE"
trap 'rm -rf "$STATE"' EXIT

PORT=$OTELCOL_FIRST_PORT
GATEWAY_PORT=$((PORT + 4))
[ "$ROLE" = gateway ] && PORT=$GATEWAY_PORT
SELF_PORT=$((PORT + 2))

# train.sbatch ends the agents by the number of their step.
echo "$SLURM_JOB_ID.${SLURM_STEP_ID:-}" >"$OTELCOL_CREDENTIALS/$ROLE.step"

export OTELCOL_STATE_DIR=$STATE/queue
export OTELCOL_TLS_CA=$OTELCOL_CREDENTIALS/ca.pem OTELCOL_TOKEN_FILE=$OTELCOL_CREDENTIALS/token
export OTELCOL_TLS_CERT=$OTELCOL_CREDENTIALS/$ROLE.pem OTELCOL_TLS_KEY=$OTELCOL_CREDENTIALS/$ROLE.key
export OTELCOL_SELF_HOST=127.0.0.1 OTELCOL_SELF_PORT=$SELF_PORT OTELCOL_HEALTH=127.0.0.1:$((PORT + 3))

FILES=(--config="$OTELCOL_DIR/$ROLE.yaml")
if [ "$ROLE" = agent ]; then
    export OTELCOL_GRPC=127.0.0.1:$PORT OTELCOL_HTTP=127.0.0.1:$((PORT + 1))
    export OTELCOL_GATEWAYS="[$OTELCOL_FIRST_NODE:$GATEWAY_PORT]" OTELCOL_METRICS_GATEWAY=$OTELCOL_FIRST_NODE:$GATEWAY_PORT
else
    # All addresses of the first node: agents come with a certificate of this job, and with its token.
    export OTELCOL_GRPC=0.0.0.0:$GATEWAY_PORT OTELCOL_METRICS=${OTELCOL_METRICS:-127.0.0.1:$((PORT + 1))}
    [ -n "${OTELCOL_PROMETHEUS_OTLP:-}" ] && FILES+=(--config="$OTELCOL_DIR/metrics-by-otlp.yaml")
    if [ -z "${OTELCOL_TRACE_STORE:-}" ]; then
        export OTELCOL_TRACE_FILE=$OTELCOL_KEPT/traces.jsonl
        FILES+=(--config="$OTELCOL_DIR/traces-to-file.yaml")
    fi
fi

# Prints how many items wait in the queues; nothing if it does not answer.
count_waiting() {
    exec 3<>"/dev/tcp/127.0.0.1/$SELF_PORT" || return
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    awk '/^otelcol_/ { seen = 1 } /^otelcol_exporter_queue_size[{ ]/ { sum += $NF } END { if (seen) print sum + 0 }' <&3
    exec 3>&-
} 2>/dev/null

# Empty twice, with a second between: what has just been accepted has reached the queue by then.
wait_until_empty() {
    local empty=0 deadline=$((SECONDS + 20))
    while [ "$SECONDS" -lt "$deadline" ] && [ "$empty" -lt 2 ] && kill -0 "$COLLECTOR" 2>/dev/null; do
        if [ "$(count_waiting)" = 0 ]; then empty=$((empty + 1)); else empty=0; fi
        sleep 1
    done
    [ "$empty" -ge 2 ] || echo "verl-otel: the $ROLE on $(hostname) ends with $(count_waiting) items in its queue" >&2
}

ASKED=
trap 'ASKED=1' URG TERM INT
"$OTELCOL" "${FILES[@]}" 2>"$OTELCOL_KEPT/$ROLE-$(hostname).log" &
COLLECTOR=$!
while [ -z "$ASKED" ] && kill -0 "$COLLECTOR" 2>/dev/null; do
    wait "$COLLECTOR"
done
wait_until_empty
kill -TERM "$COLLECTOR" 2>/dev/null
wait "$COLLECTOR"
