"""Pretrained detectors: the public model zoos of both lines, their downloads and archives.

Nothing is downloaded before `resolve` is called with a name of the zoo.
"""

from __future__ import annotations

import csv
import glob
import gzip
import logging
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from estimator_det.config.text import nearest
from estimator_det.console import bars
from estimator_det.errors import RunError, UsageError

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2

CACHE_VARIABLE = "ESTIMATOR_DET_CACHE"

RETRIES = 2
TIMEOUT_SECS = 30.0  # without a byte from the server
MAX_FILES = 10_000
MAX_BYTES = 8 * 2**30  # the largest archive of the zoo unpacks to less than 2 GB
# Weights do not compress, text graphs to a tenth; deflate reaches 1,000, which only bombs need.
MAX_RATIO = 100
_SMALL_BYTES = 2**20  # unpacked archives up to this size may have any ratio
_MAX_READ = 2**24  # headers are smaller; a larger one would be read into memory

_DAMAGE = (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile)
# A file and a folder of the archive have the same path.
_CONFLICTS = (FileExistsError, NotADirectoryError, IsADirectoryError)

_LOG = logging.getLogger(__name__)
_STEP = re.compile(r"-(\d+)$")
_NOT_BUILT = "extremenet"  # a further name of the TensorFlow 2 zoo


class ZooModel(NamedTuple):
    """A model of the public zoo: a row of pretrained.csv."""

    name: str
    url: str
    extractor: str  # `feature_extractor.type` of its configuration
    data: str  # training data
    quality: str  # published mAP in percent, as "39.0/34.6" for boxes and masks; "" if none
    speed: str  # published time of an image; "" without one
    checksum: str  # "sha256:…" or "sha384:…"; "" if none was published

    @property
    def file(self) -> str:
        """Name of the archive in the cache."""
        return self.url.rpartition("/")[2]

    @property
    def line(self) -> str:
        """The line of networks: TF1 or TF2."""
        return "TF2" if "/tf2/" in self.url else "TF1"

    @property
    def published(self) -> str:
        """Published quality and speed in words."""
        metric = "mAP" if self.data == "COCO" else "mAP@.50"
        quality = f"{self.data} {metric} {self.quality or 'not published'}"
        return f"{quality}, {self.speed}" if self.speed else quality


def zoo() -> List[ZooModel]:
    """Models of the public zoos, in their order, as far as their networks are built here.

    From tf1_detection_zoo.md and tf2_detection_zoo.md of tensorflow/models, which contain no
    checksums; these are from Intel's Open Model Zoo and the build of TensorFlow.
    """
    path = os.path.join(os.path.dirname(__file__), "pretrained.csv")
    with open(path, encoding="utf-8", newline="") as file:
        return [ZooModel(**row) for row in csv.DictReader(file)]


class Pretrained(NamedTuple):
    """Weights to start from, and the configuration that they were trained with."""

    name: str  # name in the zoo, or a path
    folder: str  # contents of the archive
    checkpoint: str  # prefix
    checkpoint_type: str  # for `train_config.fine_tune_checkpoint_type`
    config_path: Optional[str]
    config: Optional[
        pipeline_pb2.TrainEvalPipelineConfig
    ]  # None if there is none and none can be proposed
    zoo_model: Optional[ZooModel] = None  # None for a file that is not in the zoo

    @property
    def fields(self) -> Dict[str, Any]:
        """Values by path of the fields that make a training start from the checkpoint."""
        return {
            "train_config.fine_tune_checkpoint": self.checkpoint,
            "train_config.fine_tune_checkpoint_type": self.checkpoint_type,
            # Heads of the same shape start from the checkpoint, too; others keep their initializer.
            "train_config.load_all_detection_checkpoint_vars": self.checkpoint_type == "detection",
        }


def resolve(name_or_path: str, cache: Optional[str] = None) -> Pretrained:
    """Weights by name of the zoo, archive (.tar.gz) or unpacked folder.

    Args:
        cache: Folder of archives and their contents; default: `default_cache()`.

    Raises:
        UsageError: if the name is not known, or the configuration cannot be read.
        FileNotFoundError: if there is no such archive, or it contains no weights.
        RunError: if a download fails, or an archive is damaged or hostile.
    """
    # A configuration with these paths may be used in another folder.
    cache = os.path.abspath(cache or default_cache())
    if os.path.isdir(name_or_path):
        return _read_folder(os.path.abspath(name_or_path), name_or_path)
    zoo_model = None
    path = name_or_path
    is_file = os.path.isfile(path)
    if not (is_file or os.sep in path or path.endswith((".tar.gz", ".tgz"))):
        zoo_model = find_model(name_or_path)
        path = download(zoo_model, cache)
    elif not is_file:
        raise FileNotFoundError(
            f"no such archive of pretrained weights: {path}. Give a .tar.gz file, or a name that "
            "`estimator-det pretrained --list` prints"
        )
    name = zoo_model.name if zoo_model else name_or_path
    return _read_folder(unpack(path, cache), name)._replace(zoo_model=zoo_model)


def default_cache() -> str:
    """$ESTIMATOR_DET_CACHE, or the folder for caches of this system."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get(CACHE_VARIABLE) or os.path.join(home, "estimator-det")


def find_model(name: str) -> ZooModel:
    """The model of the zoo with this name, or with this name of its archive."""
    models = {key: model for model in zoo() for key in (model.file[: -len(".tar.gz")], model.name)}
    if name not in models:
        if name == _NOT_BUILT:
            raise UsageError(
                f"pretrained model {name!r} of the TensorFlow 2 model zoo has a network that is "
                "not built here; `estimator-det pretrained --list` prints all models whose "
                "networks are"
            )
        hint = nearest(name, [model.name for model in models.values()]) or "."
        raise UsageError(
            f"pretrained model {name!r} is not known{hint} `estimator-det pretrained --list` "
            "prints all names; a file needs its path, such as ./model.tar.gz"
        )
    return models[name]


def download(model: ZooModel, cache: str) -> str:
    """Path of the archive in the cache, downloaded if it is not there."""
    import pooch

    path = os.path.join(cache, model.file)
    if not os.path.isfile(path):
        _fetch(model, cache, path)
    algorithm, _, published = (model.checksum or "sha256:").partition(":")
    checksum = pooch.file_hash(path, algorithm)
    if published and checksum != published:
        raise RunError(
            f"{path} has the {algorithm} {checksum}; published for {model.name} is {published}. "
            f"Delete the file to download it again, or replace it by {model.url}"
        )
    state = "as published" if published else "none is published to compare it with"
    _LOG.info("%s of %s: %s (%s)", algorithm, model.file, checksum, state)
    return path


def _fetch(model: ZooModel, cache: str, path: str) -> None:
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.ERROR)  # its messages repeat those below
    _LOG.info("downloading %s to %s", model.url, path)
    source = pooch.create(
        path=cache,
        base_url="",
        registry={model.file: model.checksum or None},
        urls={model.file: model.url},
        retry_if_failed=RETRIES,
    )
    try:
        source.fetch(model.file, downloader=_download)
    except requests.exceptions.RequestException as error:
        host = model.url.split("/")[2]
        is_offline = isinstance(error, requests.exceptions.ConnectionError)
        is_offline = is_offline and "timed out" not in str(error)
        cause = f"no connection to {host}" if is_offline else " ".join(str(error).split())[:120]
    except ValueError:  # pooch found another checksum
        cause = f"its checksum is not the published {model.checksum}"
    else:
        return
    raise RunError(
        f"{model.name} cannot be downloaded: {cause}. Run the command again, or get {model.url} "
        f"by other means and put it at {path}"
    )


def _download(url: str, path: str, _: Any) -> None:
    """Writes a file, with progress; pooch calls it for each attempt."""
    import requests

    with requests.get(url, stream=True, timeout=TIMEOUT_SECS) as response:
        response.raise_for_status()
        size = int(response.headers.get("Content-Length", 0)) or None
        with open(path, "wb") as file, bars.progress_bar("download", size, "bytes") as advance:
            for block in response.iter_content(2**16):
                advance(file.write(block))


class _Gzip(gzip.GzipFile):
    """A compressed file that refuses reads of more than a header or a block of data."""

    def read(self, size: Any = -1) -> bytes:
        """Reads up to `size` bytes."""
        if size is None or not 0 <= size <= _MAX_READ:
            raise tarfile.ReadError(f"a header has {size:,} bytes")
        return super().read(size)


def unpack(archive: str, cache: str) -> str:
    """Unpacks an archive into a folder of the cache, unless that exists; returns the folder.

    Files and folders are written under names inside that folder only, with the permissions of new
    files. An archive with anything else is refused as a whole.
    """
    import pooch

    stem = re.sub(r"(\.tar)?\.t?gz$", "", os.path.basename(archive))
    # By content: a file that another one replaces gets another folder.
    folder = os.path.join(cache, f"{stem}-{pooch.file_hash(archive)[:12]}")
    if os.path.isdir(folder):
        return folder
    os.makedirs(cache, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".unpack-") as temporary:
        content = os.path.join(temporary, "content")
        os.mkdir(content)  # with the usual permissions; `temporary` is private
        try:
            _unpack_members(archive, content)
        except (*_DAMAGE, *_CONFLICTS) as error:
            raise RunError(
                f"{archive} is not a whole .tar.gz file ({error}). Delete it, and get it again"
            ) from error
        if not os.path.isdir(folder):  # another process may have been faster
            os.rename(content, folder)
    return folder


def _unpack_members(archive: str, folder: str) -> None:
    with _Gzip(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
        for member in _checked(tar, archive):
            path = os.path.join(folder, member.name)
            if member.isdir():
                os.makedirs(path, exist_ok=True)
                continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
            content: Any = tar.extractfile(member)
            with open(path, "wb") as file:
                shutil.copyfileobj(content, file)
            if os.path.getsize(path) != member.size:
                raise tarfile.ReadError(f"{member.name} is cut off")
        # tarfile ends at a damaged header; zlib compares its checksum at the end of the stream.
        if stream.read(_MAX_READ).strip(b"\0") or stream.read(1):
            raise tarfile.ReadError("a header is damaged")


def _checked(tar: tarfile.TarFile, archive: str) -> Iterator[tarfile.TarInfo]:
    """Members of an archive, each checked before it is returned."""
    limit = min(MAX_BYTES, _SMALL_BYTES + MAX_RATIO * os.path.getsize(archive))
    num_bytes = 0
    for count, member in enumerate(tar, start=1):
        num_bytes += member.size
        parts = re.split(r"[/\\]", member.name)
        fault = ""
        if not (member.isreg() or member.isdir()):
            fault = "is a link or a device"
        elif os.path.isabs(member.name) or ".." in parts or "\0" in member.name or ":" in parts[0]:
            fault = "leaves the folder of the archive"
        elif count > MAX_FILES:
            fault = f"is file {count:,}; allowed: {MAX_FILES:,}"
        elif member.size < 0 or num_bytes > limit:
            fault = f"brings the unpacked size to {num_bytes:,} bytes; allowed: {limit:,}"
        if fault:
            raise RunError(
                f"{archive} is not unpacked: {member.name!r} {fault}. Archives of models contain "
                "files and folders of plain names; get this one from its publisher again"
            )
        yield member


def _read_folder(folder: str, name: str) -> Pretrained:
    """Finds checkpoint and configuration in an unpacked archive of 2017 to 2021."""
    from estimator_det.config import pipeline

    checkpoint = _find_checkpoint(folder)
    beside = os.path.dirname(checkpoint) if checkpoint else folder
    path = _find_config(beside) or _find_config(folder)
    config = pipeline.read_pipeline(path) if path else None
    if checkpoint is None:
        checkpoint, path = _import_graph(folder, name, config)
        config = pipeline.read_pipeline(path)
    elif config is None and (graph := _find_graph(folder)):
        config = _propose(graph)
    return Pretrained(name, folder, checkpoint, _type_of(checkpoint), path, config)


def _files(folder: str, pattern: str) -> List[str]:
    """Paths below a folder, the least deep first."""
    paths = glob.glob(os.path.join(glob.escape(folder), "**", pattern), recursive=True)
    return sorted(filter(os.path.isfile, paths), key=lambda path: (path.count(os.sep), path))


def _find_checkpoint(folder: str) -> Optional[str]:
    """Prefix of the checkpoint: the least deep, float before quantized, the newest."""
    prefixes = [path[: -len(".index")] for path in _files(folder, "*.index")]
    # A SavedModel has its variables in the same form.
    prefixes = [path for path in prefixes if os.path.basename(path) != "variables"]

    def rank(prefix: str) -> Any:
        step = _STEP.search(prefix)
        return (prefix.count(os.sep), "uint8" in prefix, -int(step[1]) if step else 0, prefix)

    return min(prefixes, key=rank) if prefixes else None


def _find_config(folder: str) -> Optional[str]:
    paths = _files(folder, "pipeline.config") or _files(folder, "*.config")
    return paths[0] if paths else None


def _find_graph(folder: str) -> Optional[str]:
    names = ("frozen_inference_graph.pb", "tflite_graph.pb")
    paths = [path for name in names for path in _files(folder, name)]
    return paths[0] if paths else None


def _type_of(checkpoint: str) -> str:
    """`fine_tune_checkpoint_type` for a checkpoint of a detector or a classifier."""
    from estimator_det.compat import tf1
    from model_fn.checkpoints.object_based import ObjectGraph
    from model_fn.checkpoints.repair import require_whole
    from model_fn.checkpoints.variables import OBJECT_GRAPH, is_of_detector

    require_whole(checkpoint)
    names = tf1.train.NewCheckpointReader(checkpoint).get_variable_to_shape_map()
    if OBJECT_GRAPH in names:
        graph = ObjectGraph(checkpoint)
        if graph.checkpoint_type is None:
            raise RunError(
                f"the checkpoint {checkpoint} contains no detector and no classifier, but "
                f"{', '.join(graph.roots)}. Give the archive of a model of the Object Detection API"
            )
        return graph.checkpoint_type
    return "detection" if any(map(is_of_detector, names)) else "classification"


def _propose(graph: str) -> Any:
    """The configuration that a frozen graph suggests; None if nothing is known of the model."""
    from exporters.importing.importer import read_published
    from exporters.importing.proposal import propose_config

    try:
        return propose_config(read_published("frozen_graph", graph))
    except UsageError:
        return None


def _import_graph(
    folder: str, name: str, config: Optional[pipeline_pb2.TrainEvalPipelineConfig]
) -> Tuple[str, str]:
    """Prefix and configuration of a checkpoint that is made of a frozen graph."""
    from exporters.importing.importer import CHECKPOINT_NAME, import_model, read_published
    from exporters.importing.proposal import propose_config

    graph = _find_graph(folder)
    if graph is None:
        raise FileNotFoundError(
            f"{name} contains neither a checkpoint (.index and .data files) nor a "
            "frozen_inference_graph.pb: it is not an archive of the model zoo. Give another "
            "archive, or use `estimator-det import` for other formats"
        )
    output = os.path.join(folder, "imported")
    if not os.path.isdir(output):
        published = read_published("frozen_graph", graph)
        imported = import_model(published, config or propose_config(published), output)
        for line in imported.warnings:
            _LOG.warning("warning: %s", line)
    return os.path.join(output, CHECKPOINT_NAME), os.path.join(output, "pipeline.config")
