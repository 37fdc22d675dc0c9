"""One image of each row of docs/image_formats.md, read by every program."""

from __future__ import annotations

import io
import re
import struct
import zlib
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
from PIL import Image

import inputs
from estimator_det.compat import tf, tf1
from exporters import Detector
from exporters.image_files import read_image
from exporters.loaded_model import LoadedModel
from inputs import serving
from inputs.conversion.images import ImageFault, ImageOptions, check_image
from inputs.decoding.decoder import make_decoder
from model_fn.drawing.before_after import read_samples
from tests.conftest import ROOT
from tests.inputs.examples import example, orientation, pipeline, reader, write
from tests.inputs.reading import run_in_graph

HEIGHT, WIDTH = 16, 24
# Ramps of other directions in each channel; 16-bit numbers, whose lower 8 bits are not zero.
DEEP = np.stack(
    [
        np.add.outer(i * np.arange(HEIGHT), (3 - i) * np.arange(WIDTH)) * 683 + 187
        for i in range(1, 4)
    ],
    axis=-1,
).astype(np.uint16)
COLOR = (DEEP >> 8).astype(np.uint8)
GRAY = COLOR[..., 0]
OTHER = Image.fromarray(COLOR[::-1].copy())  # a second frame
PALETTE = Image.fromarray(COLOR).quantize(16)
BLACK_AND_WHITE = Image.fromarray(GRAY).convert("1")


def _file(image: Any, kind: str, **save: Any) -> bytes:
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, kind, **save)
    return buffer.getvalue()


def _deep_color_png() -> bytes:
    """A PNG of 3 x 16 bits, which Pillow does not write."""
    rows = b"".join(b"\0" + row.tobytes() for row in DEEP.astype(">u2"))
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def _of(image: Any) -> np.ndarray:
    """The colors of an image that is not transparent."""
    return np.asarray(image.convert("RGB"))


ANIMATED = {"save_all": True, "append_images": [OTHER]}
GRAYS = np.dstack([GRAY] * 3)
TRANSPARENT = np.where((np.asarray(PALETTE) == 3)[..., None], 0, _of(PALETTE))
# By row: the file, the pixels, and how far a lossy format may be from them.
IMAGES: Dict[str, Any] = {
    "JPEG": (_file(COLOR, "JPEG", quality=95), COLOR, 12),
    "progressive JPEG": (_file(COLOR, "JPEG", quality=95, progressive=True), COLOR, 12),
    "gray JPEG": (_file(GRAY, "JPEG", quality=95), GRAYS, 12),
    "CMYK JPEG": (_file(Image.fromarray(COLOR).convert("CMYK"), "JPEG", quality=95), COLOR, 12),
    "PNG": (_file(COLOR, "PNG"), COLOR, 0),
    "gray PNG": (_file(GRAY, "PNG"), GRAYS, 0),
    "PNG with alpha": (_file(np.dstack([COLOR, GRAY]), "PNG"), COLOR, 0),
    "PNG with a palette": (_file(PALETTE, "PNG"), _of(PALETTE), 0),
    "PNG with a transparent palette": (_file(PALETTE, "PNG", transparency=3), _of(PALETTE), 0),
    "1-bit PNG": (_file(BLACK_AND_WHITE, "PNG"), _of(BLACK_AND_WHITE), 0),
    "16-bit gray PNG": (_file(DEEP[..., 0].copy(), "PNG"), GRAYS, 0),
    "16-bit color PNG": (_deep_color_png(), COLOR, 0),
    "animated PNG": (_file(COLOR, "PNG", **ANIMATED), COLOR, 0),
    "GIF": (_file(PALETTE, "GIF"), _of(PALETTE), 0),
    "transparent GIF": (_file(PALETTE, "GIF", transparency=3), TRANSPARENT, 0),
    "animated GIF": (_file(PALETTE, "GIF", **ANIMATED), _of(PALETTE), 0),
    "BMP": (_file(COLOR, "BMP"), COLOR, 0),
    "gray BMP": (_file(GRAY, "BMP"), GRAYS, 0),
    "BMP with a palette": (_file(PALETTE, "BMP"), _of(PALETTE), 0),
    "1-bit BMP": (_file(BLACK_AND_WHITE, "BMP"), _of(BLACK_AND_WHITE), 0),
    "WebP": (_file(COLOR, "WEBP", lossless=True), COLOR, 0),
    "animated WebP": (_file(COLOR, "WEBP", lossless=True, **ANIMATED), COLOR, 0),
    "TIFF": (_file(COLOR, "TIFF"), COLOR, 0),
    "16-bit gray TIFF": (_file(DEEP[..., 0].copy(), "TIFF"), GRAYS, 0),
    "TIFF of 32-bit numbers": (_file(DEEP[..., 0].astype(np.float32), "TIFF"), None, 0),
}
PAGE = (ROOT / "docs" / "image_formats.md").read_text()
ROWS = re.findall(r"^\| (.+?) \| (yes|no) \| (yes|no) \|", PAGE, re.M)
IN_RECORDS = [name for name, in_records, _ in ROWS if in_records == "yes"]
DETECTED = [name for name, _, detected in ROWS if detected == "yes"]


class _Seen(LoadedModel):
    """Keeps the images that it gets."""

    def __init__(self) -> None:
        super().__init__("model", {}, "")
        self.images: List[np.ndarray] = []

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        self.images += list(images)
        names = ("num_detections", "detection_boxes", "detection_scores", "detection_classes")
        return {name: np.zeros([len(images), 0, 4]) for name in names[1:]} | {
            names[0]: np.zeros(len(images))
        }


def _detector_sees(*images: Any) -> List[np.ndarray]:
    model = _Seen()
    Detector(model)(list(images))
    return model.images


def _served(input_type: str, fed: List[bytes]) -> List[np.ndarray]:
    def whole(images: tf.Tensor) -> Any:
        return images, tf.constant([[HEIGHT, WIDTH, 3]])

    with tf.Graph().as_default(), tf1.Session() as session:
        receiver = serving.make_receiver(input_type, whole)
        return list(session.run(receiver.inputs, {f"{input_type}:0": fed}))


def _whole_pipeline(path: str, make_input_fn: Callable[..., Any]) -> List[np.ndarray]:
    """The images of a record file, as they enter a model whose input has their size."""
    shape = f"fixed_shape_resizer {{ height: {HEIGHT} width: {WIDTH} }}"
    source = f'tf_record_input_reader {{ input_path: "{path}" }} shuffle: false num_epochs: 1'
    config = pipeline(
        f"model {{ ssd {{ image_resizer {{ {shape} }} }} }} train_config {{ batch_size: 1 }}"
        f"train_input_reader {{ {source} }}"
    )
    config.eval_input_reader[0].CopyFrom(config.train_input_reader)

    def preprocess(images: tf.Tensor) -> Any:
        return images, tf.fill([tf.shape(images)[0], 1], 1) * [[HEIGHT, WIDTH, 3]]

    batches = run_in_graph(make_input_fn(config, preprocess))
    return [features["image"][0] for features, _ in batches]


def test_the_page_names_every_image():
    assert [name for name, *_ in ROWS] == list(IMAGES)


def test_records_and_served_models_decode_the_same(tmp_path):
    files = [IMAGES[name][0] for name in IN_RECORDS]
    records = [example({"image/encoded": content}) for content in files]
    path = write(tmp_path / "in.record", records)
    source = reader(f'tf_record_input_reader {{ input_path: "{path}" }}')
    shown = {
        sample.image.numpy().tobytes() for sample in read_samples(source, len(files), 0).samples
    }
    programs = {
        "training": _whole_pipeline(path, inputs.create_train_input_fn),
        "evaluation": _whole_pipeline(path, inputs.create_eval_input_fn),
        "served files": _served("encoded_image_string_tensor", files),
        "served examples": _served("tf_example", records),
    }
    for i, name in enumerate(IN_RECORDS):
        (tmp_path / "image").write_bytes(files[i])
        detected = read_image(str(tmp_path / "image")).pixels
        assert detected.tobytes() in shown, name
        for program, images in programs.items():
            np.testing.assert_array_equal(images[i], detected, f"{name}: {program}")


@pytest.mark.parametrize("name", DETECTED)
def test_detection_and_conversion_have_the_pixels_of_the_page(name, tmp_path):
    content, pixels, tolerance = IMAGES[name]
    path = tmp_path / "image"
    path.write_bytes(content)
    seen, from_pillow = _detector_sees(path, Image.open(path))
    assert np.abs(seen.astype(int) - pixels).max() <= tolerance
    assert np.abs(seen.astype(int) - from_pillow).max() <= (6 if tolerance else 0)
    np.testing.assert_array_equal(read_image(str(path)).pixels, seen)
    again = check_image(content, ImageOptions(encode="png")).encoded
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(again)).convert("RGB")), seen)
    if name in IN_RECORDS:
        assert check_image(content, ImageOptions()).encoded == content
    else:
        with pytest.raises(ImageFault) as refused:
            check_image(content, ImageOptions())
        assert refused.value.kind == "unsupported_image"


def test_images_without_a_range_of_values_are_refused(tmp_path):
    path = tmp_path / "a.tif"
    path.write_bytes(IMAGES["TIFF of 32-bit numbers"][0])
    with pytest.raises(OSError, match=r"a.tif cannot be read: its pixels are 32-bit numbers"):
        read_image(str(path))
    with pytest.raises(ValueError, match="black and white are not known"):
        _detector_sees(Image.open(path))


def test_exif_rotation_is_applied_by_detection_and_conversion(tmp_path):
    content = _file(COLOR, "PNG", exif=orientation(6))
    (tmp_path / "a.png").write_bytes(content)
    upright = np.rot90(COLOR, -1)
    for seen in _detector_sees(tmp_path / "a.png", Image.open(tmp_path / "a.png")):
        np.testing.assert_array_equal(seen, upright)
    converted = check_image(content, ImageOptions(exif="apply")).encoded
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(converted))), upright)
    record = example({"image/encoded": content})
    np.testing.assert_array_equal(make_decoder(reader())(tf.constant(record)).image, COLOR)
    np.testing.assert_array_equal(_served("encoded_image_string_tensor", [content])[0], COLOR)
