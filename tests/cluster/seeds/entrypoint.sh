#!/bin/sh
# As torchelastic/examples starts a program: by the variables of the pod.
exec torchrun --rdzv_backend etcd-v2 --rdzv_endpoint "$RDZV_ENDPOINT" --rdzv_id "$JOB_ID" \
  --nnodes "$MIN_SIZE:$MAX_SIZE" --nproc_per_node 1 "$@"
