"""A detector of any format, and the detections of an image."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from typing import (
    Any,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
    overload,
)

import numpy as np
from PIL import Image

from estimator_det.compat import tf
from estimator_det.config.text import nearest
from estimator_det.console.printing import plain
from estimator_det.errors import RunError, UsageError
from estimator_det.files.mask_regions import MaskRegion, paste_mask, run_lengths
from exporters import formats
from exporters.image_files import pillow_pixels, read_image
from exporters.loaded_model import (
    BOXES,
    CLASSES,
    KEYPOINT_SCORES,
    KEYPOINTS,
    MASKS,
    NO_SKELETON,
    NUM,
    SCORES,
    LoadedModel,
    Skeleton,
    resized,
)
from inputs.serving import COLOR_CHANNELS
from model_fn.drawing.boxes import DrawOptions, draw_boxes
from model_fn.evaluation import score_thresholds

SAME_OBJECT_IOU = 0.7  # detections of two classes that overlap this much are of one object

ImageOrPath = Union[np.ndarray, Image.Image, str, "os.PathLike[str]"]


class ClassThresholds(NamedTuple):
    """The lowest score of a detection that is kept, by class."""

    default: float  # for classes that `per_class` lacks
    per_class: Mapping[int, float]

    def of(self, class_ids: np.ndarray) -> np.ndarray:
        """float32 [n], for class ids [n]."""
        return np.array([self.per_class.get(int(k), self.default) for k in class_ids], np.float32)


@dataclasses.dataclass(frozen=True)
class Detections:
    """The detections of one image by falling score; n may be 0."""

    normalized_boxes: np.ndarray  # float32 [n, 4], ymin, xmin, ymax, xmax as fractions of the image
    scores: np.ndarray  # float32 [n]
    classes: np.ndarray  # int64 [n], ids of the label map, from 1
    names: Tuple[str, ...]  # class names; the id as text without a name
    image_size: Tuple[int, int]  # height and width
    masks: Optional[np.ndarray] = None  # float32 [n, h, w], each fills its box; if the model has it
    # float32 [n, P, 2], y and x as fractions of the image, if the model finds keypoints
    keypoints: Optional[np.ndarray] = None
    keypoint_scores: Optional[np.ndarray] = None  # float32 [n, P], 0 if the class lacks it
    skeleton: Skeleton = NO_SKELETON  # names of the keypoints, and lines between them

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def boxes(self) -> np.ndarray:
        """float32 [n, 4], ymin, xmin, ymax, xmax in pixels of the image."""
        return self.normalized_boxes * np.array(self.image_size * 2, np.float32)

    def mask(self, i: int, image_size: Optional[Tuple[int, int]] = None) -> MaskRegion:
        """The mask of a detection in its image, or in one of another size."""
        if self.masks is None:
            raise ValueError("these detections have no masks: the model does not predict them")
        return paste_mask(self.masks[i], self.normalized_boxes[i], image_size or self.image_size)

    def whole_masks(self) -> np.ndarray:
        """The masks as bool [n, height, width] of the image."""
        masks = np.zeros([len(self), *self.image_size], bool)
        for i, region in enumerate(map(self.mask, range(len(self)))):
            rows, columns = region.inside.shape
            area = masks[i, region.top : region.top + rows, region.left : region.left + columns]
            area[...] = region.inside
        return masks

    def select(self, keep: np.ndarray) -> Detections:
        """The detections of some indices, or of those for which bool [n] is true."""
        indices = np.arange(len(self))[keep]
        return dataclasses.replace(
            self,
            normalized_boxes=self.normalized_boxes[indices],
            scores=self.scores[indices],
            classes=self.classes[indices],
            names=tuple(self.names[i] for i in indices),
            masks=None if self.masks is None else self.masks[indices],
            keypoints=None if self.keypoints is None else self.keypoints[indices],
            keypoint_scores=None if self.keypoint_scores is None else self.keypoint_scores[indices],
        )

    def above(self, min_score: Union[float, ClassThresholds]) -> Detections:
        """The detections whose score reaches the minimum, or the threshold of their class."""
        if isinstance(min_score, ClassThresholds):
            return self.select(self.scores >= min_score.of(self.classes))
        return self.select(self.scores >= min_score)

    def segmentation(self, i: int) -> Dict[str, Any]:
        """The mask of a detection as run lengths in COCO's format, ready for JSON."""
        encoded = run_lengths(self.mask(i), self.image_size)
        return {**encoded, "counts": encoded["counts"].decode("ascii")}

    def is_keypoint(self) -> np.ndarray:
        """Bool [n, P], False for keypoints that the class of a detection lacks."""
        if self.keypoints is None:
            raise ValueError("these detections have no keypoints: the model does not find them")
        is_found = np.isfinite(self.keypoints).all(axis=-1)
        return is_found if self.keypoint_scores is None else is_found & (self.keypoint_scores > 0)

    def to_coco(self, image_id: Any) -> List[Dict[str, Any]]:
        """Entries of COCO's results file; boxes are x, y, width and height in pixels.

        Keypoints are x, y and visibility: 2, or 0 for those that the class lacks.
        """
        entries = []
        for i, (top, left, bottom, right) in enumerate(self.boxes.tolist()):
            entry = {
                "image_id": image_id,
                "category_id": int(self.classes[i]),
                "bbox": [left, top, right - left, bottom - top],
                "score": float(self.scores[i]),
            }
            if self.masks is not None:
                entry["segmentation"] = self.segmentation(i)
            if self.keypoints is not None:
                points, has_point = self.keypoints_in_pixels()
                rows = np.hstack([points[i], 2 * has_point[i, :, np.newaxis]])
                entry["keypoints"] = rows.ravel().tolist()
            entries.append(entry)
        return entries

    def keypoints_in_pixels(self) -> Tuple[np.ndarray, np.ndarray]:
        """Keypoints as x and y in pixels [n, P, 2], 0 where absent, and `is_keypoint`."""
        has_point = self.is_keypoint()
        assert self.keypoints is not None
        points = self.keypoints[..., ::-1] * np.array(self.image_size[::-1], np.float32)
        return np.where(has_point[..., np.newaxis], points, 0.0), has_point

    def to_supervision(self) -> Any:
        """The same as `supervision.Detections`, with boxes as x, y, x, y in pixels."""
        return _supervision().Detections(
            xyxy=self.boxes[:, [1, 0, 3, 2]],
            mask=None if self.masks is None else self.whole_masks(),
            confidence=self.scores,
            class_id=self.classes,
            data={"class_name": np.array(self.names, str)},
        )

    def to_supervision_keypoints(self) -> Any:
        """The keypoints as `supervision.KeyPoints`, x and y in pixels, 0 where absent."""
        points, has_point = self.keypoints_in_pixels()
        scores = has_point.astype(np.float32)
        if self.keypoint_scores is not None:
            scores *= self.keypoint_scores
        # Versions of the package have several names for the scores, but all have them third.
        return _supervision().KeyPoints(
            points, self.classes, scores, data={"class_name": np.array(self.names, str)}
        )

    def draw(self, image: ImageOrPath) -> np.ndarray:
        """A copy of an image, uint8 [h, w, 3] of any size, with the detections on it.

        Of detections that overlap by SAME_OBJECT_IOU or more, only the best is drawn.

        Args:
            image: As a `Detector` takes it.
        """
        pixels, _ = _read(image)
        size = (pixels.shape[0], pixels.shape[1])
        return draw_boxes(
            pixels,
            self.normalized_boxes,
            self.names,
            self.scores,
            colors=self.classes.tolist(),
            keypoints=self.keypoints,
            keypoint_scores=self.keypoint_scores,
            mask_of=None if self.masks is None else lambda i: self.mask(i, size),
            options=DrawOptions(
                min_score=0.0,
                same_object_iou=SAME_OBJECT_IOU,
                keypoint_edges=self.skeleton.edges,
            ),
        )


class Detector:
    """An exported model of any format that detects objects in images.

    Args:
        model: The folder of an export or a model in it, recognized by its content; or a model that
            is already loaded.
    """

    def __init__(self, model: Union[str, os.PathLike[str], LoadedModel]) -> None:
        if not isinstance(model, LoadedModel):
            model = formats.load_model(os.fspath(model))
        self.model: LoadedModel = model

    # A text is a sequence of texts, too.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, images: Union[str, os.PathLike[str], Image.Image]
    ) -> Detections: ...

    @overload
    def __call__(self, images: np.ndarray) -> Any: ...  # a list for a batch

    @overload
    def __call__(self, images: Sequence[ImageOrPath]) -> List[Detections]: ...

    def __call__(
        self, images: Union[ImageOrPath, Sequence[ImageOrPath]]
    ) -> Union[Detections, List[Detections]]:
        """Detects objects in an image, or in each of several.

        Args:
            images: The path of an image file, a Pillow image, or uint8 [h, w, 3] RGB; or a sequence
                of these, or uint8 [B, h, w, 3]. Files and Pillow images are rotated as their EXIF
                data state.

        Returns:
            The detections of the image, or a list for a sequence or a batch.

        Raises:
            ValueError: if an array is not of this type and shape.
            OSError: if a file cannot be read.
        """
        if isinstance(images, np.ndarray) and images.ndim == 4:
            return self.detect_batch(images)
        if isinstance(images, (str, os.PathLike, np.ndarray, Image.Image)):
            return self._detect(images)
        return [self._detect(image) for image in images]

    def _detect(self, image: ImageOrPath) -> Detections:
        pixels, size = _read(image)
        return self.detect_batch(pixels[np.newaxis], size)[0]

    def detect_batch(
        self, images: np.ndarray, image_size: Optional[Tuple[int, int]] = None
    ) -> List[Detections]:
        """Detects objects in images of one size, uint8 [B, h, w, 3] RGB.

        Args:
            image_size: Height and width in whose pixels the boxes are; default: of the images.
        """
        size = image_size or (images.shape[1], images.shape[2])
        fitted = np.stack([self.fit(pixels) for pixels in images])
        return [self.detections_of(outputs, size) for outputs in self.run(fitted)]

    def fit(self, image: np.ndarray) -> np.ndarray:
        """An image, uint8 [h, w, 3] RGB, in the size that the model takes if it takes only one."""
        return resized(_checked(image), self.model.image_size)

    def run(self, images: np.ndarray) -> List[Dict[str, np.ndarray]]:
        """The model's outputs for each of the images, uint8 [B, h, w, 3], which `fit` has made.

        Outputs without a value for each image are left out.
        """
        count = self.model.batch_size or len(images)
        rows: List[Dict[str, np.ndarray]] = []
        for start in range(0, len(images), count):
            batch = images[start : start + count]
            missing = count - len(batch)
            if missing:  # models of one batch size get empty images past the last one
                batch = np.pad(batch, [(0, missing), (0, 0), (0, 0), (0, 0)])
            with self.model.turn:
                outputs = self.model.run(batch)
            outputs = {key: each for key, each in outputs.items() if np.shape(each)[:1] == (count,)}
            rows += [
                {key: each[i] for key, each in outputs.items()} for i in range(count - missing)
            ]
        return rows

    def detections_of(
        self, outputs: Mapping[str, np.ndarray], image_size: Tuple[int, int]
    ) -> Detections:
        """The detections of one image, of outputs that `run` has returned.

        Args:
            image_size: Height and width of the image.
        """
        # Some models change scores after the search, such as a CenterNet with rescore_instances.
        order = np.argsort(-outputs[SCORES][: int(outputs[NUM])], kind="stable")
        classes = outputs[CLASSES][order].astype(np.int64)
        masks, keypoints, keypoint_scores = (
            outputs[name][order] if name in outputs else None
            for name in (MASKS, KEYPOINTS, KEYPOINT_SCORES)
        )
        return Detections(
            normalized_boxes=outputs[BOXES][order],
            scores=outputs[SCORES][order],
            classes=classes,
            names=tuple(map(self.model.name, classes)),
            image_size=image_size,
            masks=masks,
            keypoints=keypoints,
            keypoint_scores=keypoint_scores,
            skeleton=NO_SKELETON if keypoints is None else self.model.skeleton,
        )

    @property
    def class_names(self) -> Dict[int, str]:
        """Id -> name of the label map; empty without one."""
        return dict(self.model.class_names)

    def class_ids(self, names: Sequence[str]) -> Set[int]:
        """Ids of the classes with some names; UsageError if the label map lacks one."""
        ids = {name: class_id for class_id, name in self.model.class_names.items()}
        path = plain(self.model.path)
        for name in names:
            if name not in ids:
                hint = nearest(name, list(ids)) or "."
                known = f"Known: {plain(', '.join(ids))}" if ids else "It has no label map"
                raise UsageError(
                    f"{path} has no class {plain(name)!r}{hint} {known}; give names of its label "
                    "map with commas between, and a name that has a comma in double quotes"
                )
        return {ids[name] for name in names}

    def best_thresholds(self) -> ClassThresholds:
        """Thresholds of the best F1; a class without its own gets the one for all classes."""
        path = self.model.thresholds_file
        if not tf.io.gfile.exists(path):
            raise RunError(
                f"{plain(self.model.path)} has no thresholds: there is no "
                f"{plain(path.removeprefix(f'{self.model.path}/'))}; evaluate the checkpoint "
                "(estimator-det evaluate --model_dir RUN), then export it again, or give "
                "--threshold a number"
            )
        table = score_thresholds.read(path)
        if table.all_classes.threshold is None:
            raise RunError(
                f"{plain(path)}: no threshold is best, since the evaluation had no correct "
                "detection; train longer, or give --threshold a number"
            )
        return ClassThresholds(table.all_classes.threshold, table.per_class())


def _supervision() -> Any:
    """The package supervision."""
    if importlib.util.find_spec("supervision") is None:
        raise RunError(
            "to_supervision needs the package supervision, which is not installed; "
            "run pip install supervision"
        )
    import supervision

    return supervision


def _read(image: ImageOrPath) -> Tuple[np.ndarray, Tuple[int, int]]:
    """Upright pixels, uint8 [h, w, 3], and the size of the whole image, of which these are 1/n."""
    if isinstance(image, (str, os.PathLike)):
        file = read_image(os.fspath(image))
        return file.pixels, (file.height, file.width)
    pixels = pillow_pixels(image) if isinstance(image, Image.Image) else _checked(image)
    return pixels, (pixels.shape[0], pixels.shape[1])


def _checked(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != COLOR_CHANNELS:
        raise ValueError(
            f"the image is {pixels.dtype} {list(pixels.shape)}; it must be uint8 [height, width, 3]"
            " in red, green, blue"
        )
    return pixels
