"""The numbers that a configuration may contain: one table of ranges for all fields.

The ends are generous: no model or data set that is in use gets near them. They keep a slip of the
keyboard from taking all memory, and stop what could never run. Components check the rules of their
own, such as which of two fields must be the larger.
"""

from __future__ import annotations

import fnmatch
import functools
import math
from typing import Iterator, NamedTuple, Tuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from estimator_det.config.problem import Problem, error, refuse
from estimator_det.config.text import entries


class Range(NamedTuple):
    """The values that some fields may have."""

    least: float
    largest: float
    unit: str  # the thing that is counted or measured; "" for a plain number
    fields: Tuple[str, ...]  # patterns of Message.field
    above: bool = False  # whether `least` itself is too small

    def contains(self, value: float) -> bool:
        """Whether a value is allowed; NaN never is."""
        return self.least <= value <= self.largest and not (self.above and value == self.least)

    def text(self) -> str:
        """`1 to 100 images`, or `above 0 to 100`."""
        unit = f" {self.unit}" if self.unit else ""
        return f"{'above ' * self.above}{self.least:,.10g} to {self.largest:,.10g}{unit}"


MOST_CLASSES = 100_000
MOST_BOXES = 20_000  # boxes of one image
MOST_DETECTIONS = 100_000  # detections of one image
MOST_IMAGES = 65_536  # images of one batch
MOST_PIXELS = 16_384  # length of a side
MOST_LAYERS = 100
MOST_CHANNELS = 65_536
MOST_BUFFERED = 10_000_000  # records, or names of files
MOST_AT_ONCE = 4_096  # threads, files, batches
MOST_STEPS = 2**32 - 1  # the largest number that the fields can hold

# The first row that has a field counts.
RANGES: Tuple[Range, ...] = (
    Range(1, MOST_CLASSES, "classes", ("*.num_classes",)),
    Range(1, MOST_IMAGES, "images", ("TrainConfig.batch_size", "EvalConfig.batch_size")),
    Range(1, MOST_BOXES, "boxes", ("InputReader.max_number_of_boxes",)),
    Range(0, MOST_BOXES, "boxes", ("TrainConfig.max_number_of_boxes",)),
    Range(
        1, MOST_DETECTIONS, "boxes",
        ("*.max_detections_per_class", "*.first_stage_max_proposals", "*.second_stage_batch_size"),
    ),
    Range(
        0, MOST_DETECTIONS, "boxes",
        ("*.max_total_detections", "*.max_box_predictions", "*.max_classes_per_detection",
         "*.max_num_boxes_to_visualize", "*.num_candidates_per_*",
         "*.mask_loss_sample_size", "HardExampleMiner.num_hard_examples",
         "HardExampleMiner.m*_negatives_per_*", "Loss.min_num_negative_samples",
         "Loss.desired_negative_sampling_ratio"),
    ),
    Range(1, MOST_DETECTIONS, "features", ("Context.max_num_context_features",)),
    Range(1, 10_000_000, "anchors", ("*_minibatch_size",)),
    # Input.
    Range(1, MOST_BUFFERED, "records", ("InputReader.read_block_length",)),
    Range(
        0, MOST_BUFFERED, "records or files",
        ("InputReader.*shuffle_buffer_size", "*.queue_capacity", "*_queue_capacity",
         "InputReader.min_after_dequeue", "InputReader.prefetch_size"),
    ),
    Range(1, MOST_AT_ONCE, "files", ("InputReader.num_readers",)),
    Range(-1, MOST_AT_ONCE, "batches", ("InputReader.num_prefetch_batches",)),
    Range(
        0, MOST_AT_ONCE, "threads or replicas",
        ("InputReader.num_parallel_*", "TrainConfig.num_batch_queue_threads",
         "TrainConfig.replicas_to_aggregate"),
    ),
    Range(1, MOST_STEPS, "records", ("InputReader.sample_1_of_n_examples",)),
    Range(0, 1_024, "channels", ("InputReader.num_additional_channels",)),
    Range(0, 10_000, "keypoints", ("*.num_keypoints",)),
    Range(-1, 2**31 - 1, "", ("InputReader.frame_index",)),
    Range(0, 1e6, "megapixels", ("BadRecords.max_megapixels",), above=True),
    Range(0, 10_000, "images", ("EvalConfig.num_visualizations",)),
    Range(
        0, MOST_STEPS, "steps, epochs, records or seconds",
        ("*.*step*", "InputReader.num_epochs", "BadRecords.max_skipped", "EvalConfig.num_examples",
         "EvalConfig.eval_interval_secs", "EvalConfig.max_evals", "*_warmup_start",
         "Quantization.delay"),
    ),
    Range(2, 16, "bits", ("Quantization.*_bits",)),
    # Sizes in pixels.
    Range(
        1, MOST_PIXELS, "pixels",
        ("FixedShapeResizer.*", "KeepAspectRatioResizer.m*_dimension", "*.size_threshold",
         "PadToMultipleResizer.multiple", "*.pad_to_multiple", "ResizeImage.new_*",
         "RandomResizeMethod.target_*", "RandomScaleCropAndPadToSquare.output_size",
         "*.mask_height", "*.mask_width", "*.mask_size", "*.crop_height", "*.crop_width",
         "GridAnchorGenerator.height", "GridAnchorGenerator.width", "*.height_stride",
         "*.width_stride", "*.first_stage_features_stride", "RandomPatchGaussian.m*_patch_size"),
    ),
    Range(-MOST_PIXELS, MOST_PIXELS, "pixels", ("*.height_offset", "*.width_offset")),
    Range(
        0, MOST_PIXELS, "pixels",
        ("*.*_crop_size", "FasterRcnn.maxpool_*", "RandomPadImage.m*_image_*",
         "RandomAbsolutePadImage.max_*_padding", "RandomSquareCropByScale.max_border",
         "Mosaic.height", "Mosaic.width"),
    ),
    Range(1, MOST_PIXELS**2, "pixels", ("RandomDownscaleToTargetPixels.*_target_pixels",)),
    # Anchors and box coders.
    Range(1, 20, "", ("FeaturePyramidNetworks.min_level",)),
    Range(0, 20, "", ("*.min_level", "*.max_level")),
    Range(1, 100, "", ("*.scales_per_octave",)),
    Range(0, MOST_PIXELS, "pixels", ("AnchorGrid.base_sizes",), above=True),
    Range(
        0, 1_000, "",
        ("*AnchorGenerator.aspect_ratios", "AnchorGrid.aspect_ratios", "*AnchorGenerator.scales",
         "SsdAnchorGenerator.m*_scale", "SsdAnchorGenerator.base_anchor_*",
         "MultiscaleAnchorGenerator.anchor_scale"),
        above=True,
    ),
    Range(0, 1_000, "", ("SsdAnchorGenerator.interpolated_scale_aspect_ratio",)),
    Range(0, 1e6, "", ("*BoxCoder.*scale", "MeanStddevBoxCoder.stddev"), above=True),
    # Augmentation.
    Range(0, 1_000, "", ("*.m*_aspect_ratio", "*.aspect_ratio", "*.scale_max"), above=True),
    Range(0, 0.5, "", ("RandomAdjustHue.max_delta",)),
    Range(0, 1, "", ("RandomAdjustBrightness.max_delta",)),
    Range(
        0, 1_000, "",
        ("RandomImageScale.*", "*_padded_size_ratio", "*.scale_min", "RandomPixelValueScale.*",
         "RandomAdjust*"),
    ),
    Range(0, 1, "", ("*.m*_area",), above=True),
    Range(
        0, 1, "",
        ("*.m*_center", "*.m*_object_covered", "*.overlap_thresh", "*.size_to_image_ratio",
         "*.random_coef", "RandomDistortColor.color_ordering"),
    ),
    Range(0, 1e6, "", ("ConvertClassLogitsToSoftmax.temperature",), above=True),
    Range(0, 1e9, "", ("AdjustGamma.*", "*_gaussian_stddev", "RandomJitterBoxes.ratio")),
    Range(0, 100, "", ("Mosaic.m*_scale", "CopyPaste.m*_scale"), above=True),
    Range(0.01, 1_000, "", ("MixUp.alpha",)),
    Range(1, 10, "operations", ("RandAugment.num_operations",)),
    Range(0, 10, "", ("RandAugment.magnitude",)),
    Range(0, 100, "", ("*_jpeg_quality",)),
    Range(0, 1_000, "patches", ("RandomBlackPatches.max_black_patches",)),
    Range(1, 1_000, "", ("RandomSquareCropByScale.num_scales",)),
    # Networks.
    Range(1, MOST_LAYERS, "layers or heads", ("Context.num_attention_*",)),
    Range(1, MOST_CHANNELS, "channels",
          ("Context.attention_bottleneck_dimension", "Context.context_feature_length")),
    Range(1e-6, 1e6, "", ("Context.attention_temperature",)),
    Range(1, 3, "stages", ("*.number_of_stages",)),
    Range(1, MOST_LAYERS, "layers",
          ("SsdAnchorGenerator.num_layers", "SsdFeatureExtractor.num_layers")),
    Range(2, MOST_LAYERS, "layers", ("*.mask_prediction_num_conv_layers",)),
    Range(
        0, MOST_LAYERS, "layers or stages",
        ("*.num_layers*", "*_num_conv_layers", "*.num_*_layers", "*.num_iterations"),
    ),
    Range(1, MOST_CHANNELS, "channels",
          ("*.first_stage_box_predictor_depth", "RfcnBoxPredictor.depth",
           "FeaturePyramidNetworks.additional_layer_depth")),
    Range(
        0, MOST_CHANNELS, "channels",
        ("*depth", "*.num_filters", "*_dim", "*_dimension", "*.dim", "*.num_init_channels",
         "*_embed_size"),
    ),
    Range(
        1, 1_000, "pixels of a feature map",
        ("*kernel_size*", "*.first_stage_atrous_rate", "*.num_spatial_bins_*"),
    ),
    Range(1, 30_000, "numbers", ("*.box_code_size",)),
    Range(0, 100, "", ("*.depth_multiplier",), above=True),
    # Training.
    Range(0, 1e9, "", ("InputReader.sample_from_datasets_weights", "*_every_n_hours")),
    # An update divides a gradient of 0 by the root of epsilon.
    Range(0, 1e6, "", ("AdamOptimizer.epsilon", "RMSPropOptimizer.epsilon"), above=True),
    Range(
        0, 1e6, "",
        ("*learning_rate", "*.learning_rate_base", "*.gradient_clipping_by_norm", "*.decay_factor",
         "*.epsilon", "L?Regularizer.weight"),
    ),
    Range(0, 1, "",
          ("*.dropout_keep_probability", "RandomExampleSampler.positive_sample_fraction"),
          above=True),
    Range(0, 1_000, "", ("*.soft_nms_sigma",)),
    Range(
        0, 1, "",
        ("*.decay", "*.moving_average_decay", "*probability", "*.min_restored_share",
         "*.momentum_optimizer_value", "*fraction", "*.iou_threshold", "*_iou_threshold"),
    ),
    # Ids of classes and keypoints; the label map or their list bounds them.
    Range(1, MOST_CLASSES, "", ("DropLabelProbabilistically.label", "RemapLabels.*")),
    Range(
        -1, 2**31 - 1, "",
        ("*_permutation", "*.label", "*Entry.key", "KeypointEdge.*"),
    ),
)  # fmt: skip

# Fields without a row: fractions, weights, colours and the like.
ANY_NUMBER = Range(-1e9, 1e9, "", ("*",))

_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
_INTEGERS = (
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
)


@functools.cache
def range_of(message: str, field: str) -> Range:
    """The range of a numeric field."""
    name = f"{message}.{field}"
    for row in RANGES:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in row.fields):
            return row
    return ANY_NUMBER


def check_ranges(message: Message, prefix: str = "") -> Iterator[Problem]:
    """An error for each number that is not finite or out of its range, in lists and maps, too.

    `prefix` is the path of `message`, with a point at its end.
    """
    for path, parent, field, value in entries(message, prefix):
        if field.cpp_type not in (*_FLOATS, *_INTEGERS):
            continue
        if not math.isfinite(value):
            yield error(path, f"is {value}, not a finite number", "set it to a finite number")
            continue
        row = range_of(parent.DESCRIPTOR.name, field.name)
        if not row.contains(value):
            yield error(
                path,
                f"is {value:,.10g}; allowed are {row.text()}",
                "set it to a number in this range",
            )


def check_ranges_or_raise(message: Message, prefix: str = "") -> None:
    """Refuses what `check_ranges` reports, before anything is built or allocated for it."""
    refuse(check_ranges(message, prefix))
