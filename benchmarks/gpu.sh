#!/usr/bin/env bash
# Tests, conformance, training speed and serving on a GPU, in one command:
#
#   CONFIGS=DIR GOLDEN=DIR RECORD=FILE LABEL_MAP=FILE benchmarks/gpu.sh [OUTPUT_DIR]
#
# CONFIGS   folder of published configurations
# GOLDEN    folder of golden numbers for the conformance; without it, that part is left out
# RECORD    TFRecord file with JPEG images, and LABEL_MAP of its classes
# PYTHON    interpreter with this product and TensorFlow's CUDA wheels; default: .venv/bin/python
# TORCH     interpreter with torchvision, to compare with; by default nothing is compared
# REFERENCE folder of the Object Detection API, to compare with, and REFERENCE_PYTHON, an interpreter
#           that runs it; `python -m benchmarks.reference --help` says how to get both
# SMALLEST  1: one test file, one configuration, steps of one image; to try the script on a CPU
set -euo pipefail
cd "$(dirname "$0")/.."

: "${CONFIGS:?a folder of .config files}" "${RECORD:?a TFRecord file}" "${LABEL_MAP:?a label map}"
output=${1:-gpu_output}
python=${PYTHON:-.venv/bin/python}
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}
export TF_FORCE_GPU_ALLOW_GROWTH=true # processes share the device

tests=(tests/boxes/nms tests/losses tests/inputs/test_pipeline.py tests/model_fn/runs/test_runner.py
  tests/benchmarks/test_conformance.py)
rows=(faster_rcnn_resnet50_coco faster_rcnn_inception_v2_coco mask_rcnn_resnet50_atrous_coco
  rfcn_resnet101_coco ssd_inception_v2_coco ssd_mobilenet_v1_300x300_coco14_sync
  ssd_mobilenet_v1_fpn_shared_box_predictor_640x640_coco14_sync ssd_mobilenet_v2_coco
  ssdlite_mobilenet_v3_large_320x320_coco ssd_resnet50_v1_fpn_shared_box_predictor_640x640_coco14_sync)
speed=(${TORCH:+--torch "$TORCH"})
if [ -n "${SMALLEST:-}" ]; then
  tests=(tests/losses)
  rows=(ssd_mobilenet_v1_300x300_coco14_sync)
  # A CPU takes minutes for a step in float16.
  speed+=(--precisions float32 mixed_bfloat16 --models ssd_mobilenet_v2_coco
    --their_models ssd300_vgg16 --batch_sizes 1 --calls 2 --processes 1)
fi
jobs=$(($(nproc) / 2))
mkdir -p "$output"
failed=()

part() { # NAME COMMAND…: its output to NAME.txt, its last lines here
  local name=$1 begin=$SECONDS
  shift
  "$@" > "$output/$name.txt" 2> "$output/$name.log" || failed+=("$name")
  echo "== $name, $((SECONDS - begin)) s"
  tail -n 20 "$output/$name.txt"
}

# What is compared with numbers of float32 must not be rounded to TF32.
run_tests() {
  NVIDIA_TF32_OVERRIDE=0 "$python" -m pytest -q -n "$jobs" --dist loadfile -m "not exhaustive" "${tests[@]}"
}

conformance() {
  export NVIDIA_TF32_OVERRIDE=0
  printf '%s\n' "${rows[@]}" | xargs -P "$jobs" -I ROW \
    "$python" -m benchmarks.conformance --configs "$CONFIGS" --golden "$GOLDEN" --only ROW
}

serving() {
  "$python" -m benchmarks.speed --config "$CONFIGS/ssd_mobilenet_v2_coco.config" --record "$RECORD" \
    --label_map "$LABEL_MAP" --only input --only start --only serving
}

"$python" -c "from estimator_det.compat import tf; print(tf.__version__, *map(
  tf.config.experimental.get_device_details, tf.config.list_physical_devices('GPU')))"
part tests run_tests
[ -z "${GOLDEN:-}" ] || part conformance conformance
part training "$python" -m benchmarks.gpu --configs "$CONFIGS" --record "$RECORD" \
  --label_map "$LABEL_MAP" "${speed[@]}"
part serving serving
[ -z "${REFERENCE:-}" ] || part reference "$REFERENCE_PYTHON" -m benchmarks.reference --turns 1 \
  --reference "$REFERENCE" --config "$CONFIGS/ssd_mobilenet_v1_pets.config" --record "$RECORD" \
  --label_map "$LABEL_MAP"
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}; see $output"; exit 1; }
