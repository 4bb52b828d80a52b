#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks and measures context parallelism on all GPUs of this machine, one process on each, and draws the result:
# scripts/gpu/context_parallel.sh OUT_FOLDER [--minutes 9] [--gpus N] [--ring WHEEL_OR_FOLDER] [OPTION...]
# OUT_FOLDER gets ranks_N.json and ranks_N.svg. It ends within the minutes, the start of processes included; what there is no
# time for is left out, the most important is measured first. --ring is a wheel of ring-flash-attn, or a folder with the
# package; without one, or RING_FLASH_ATTENTION in the environment, it is left out. --device cpu runs tiny sizes by gloo.
# Other options are those of bench/gpu/context_parallel.py. NVLink multicast stays off, as hosts may share GPUs.
set -euo pipefail
if (($# < 1)) || [[ $1 == -* ]]; then
  echo "usage: scripts/gpu/context_parallel.sh OUT_FOLDER [--minutes 9] [--gpus N] [--ring WHEEL_OR_FOLDER] [OPTION...]" >&2
  exit 2
fi
start=$SECONDS
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
minutes=9 gpus='' ring=${RING_FLASH_ATTENTION:-} device=cuda options=()
while (($#)); do
  case $1 in
    --minutes) minutes=$2 ;;
    --gpus) gpus=$2 ;;
    --ring) ring=$2 ;;
    --device) device=$2 ;;
    *) options+=("$1") && shift && continue ;;
  esac
  shift 2
done
[[ -z $ring ]] || ring=$(realpath "$ring")
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}

if [[ -z $gpus && $device == cuda ]]; then
  gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
fi
gpus=${gpus:-2}
if ((gpus < 2)); then
  echo "context_parallel.sh: there are $gpus GPUs, where several are needed" >&2
  exit 2
fi

packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
if [[ $ring == *.whl ]]; then
  "$python" -m zipfile --extract "$ring" "$packages"
  ring=$packages
fi
if [[ -n $ring ]]; then
  options+=(--ring "$ring")
else
  echo "ring-flash-attn is left out: no --ring names its wheel"
fi

export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PYTHONUNBUFFERED=1
seconds=$("$python" -c "print(int(60 * $minutes) - $((SECONDS - start)))")
json=$out/ranks_$gpus.json
status=0
# Processes get what is left but for their start and end, and are ended where they do not.
timeout --kill-after=5 $((seconds > 20 ? seconds - 5 : seconds)) \
  "$python" -m torch.distributed.run --standalone --nproc-per-node "$gpus" bench/gpu/context_parallel.py "$json" \
  --device "$device" --minutes "$("$python" -c "print(max(0.2, ($seconds - 35) / 60))")" "${options[@]}" || status=$?
if ((status == 124)); then echo "context_parallel.sh: the processes did not end in $minutes minutes; $json has what they measured"; fi
if "$python" -c 'import matplotlib' 2>/dev/null; then
  "$python" bench/plot_ranks.py "$json" --out "${json%.json}.svg" || echo "context_parallel.sh: no plot was drawn"
fi
exit $status
