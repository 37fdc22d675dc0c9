"""The HTTP application: predictions as TensorFlow Serving answers them, detections, and a page.

Whatever a request contains, the answer is JSON without traces and without paths of this machine.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import hmac
import html
import json
import logging
import pathlib
import re
import threading
import time
from typing import Any, AsyncIterator, Callable, Dict, Iterator, List, NamedTuple, Tuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from estimator_det.compat import failures, tf
from estimator_det.console.printing import plain
from estimator_det.errors import RunError
from estimator_det.files.text import names_of
from exporters.detect_files import DEFAULT_MIN_SCORE, Filter, json_entries
from exporters.detector import Detector
from exporters.image_files import decode_image
from exporters.server import protocol
from exporters.server.backend import BackendError
from exporters.server.batching import Full, Outputs
from exporters.server.metrics import ServerCounters
from exporters.server.protocol import Refused, bad_request
from exporters.server.versions import ModelVersions, Version

AUTO = "auto"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_BODY_SECONDS = 30  # that a client may take to send a request
_RETRY_AFTER = 1  # seconds
_PAGE = pathlib.Path(__file__).parent / "page.html"
_OPEN = ("/", "/healthz")  # answered without the token

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        queue: Requests that are under way at once; further ones get status 503.
        body_bytes: The largest body of a request.
        pixels: The largest image.
    """

    queue: int = 64
    body_bytes: int = 16 << 20
    pixels: int = 24_000_000


class _Run(NamedTuple):
    image_size: Tuple[int, int]  # height and width
    version: Version
    outputs: Outputs


class Server:
    """Answers the requests to one model.

    Args:
        name: The part of a request's path that names the model.
        models: The versions of the model.
        threads: Images that are decoded at once.
        token: Bearer token without which a request is refused; "" for none.
    """

    def __init__(
        self,
        name: str,
        models: ModelVersions,
        metrics: ServerCounters,
        limits: Limits = Limits(),
        *,
        threads: int = 2,
        token: str = "",
    ) -> None:
        self._name, self._models, self._metrics = name, models, metrics
        self._limits, self._token = limits, token
        # A thread waits for the model's answer to each image; few decode at once.
        self._pool = concurrent.futures.ThreadPoolExecutor(limits.queue, "request")
        self._decoding = threading.Semaphore(threads)
        self._under_way = 0
        self._page, self._policy = _page(name)

    def app(self, host: str) -> Starlette:
        """The application. Bound to a loopback address, it answers to names of this machine only.

        Else a page on the web could give itself this address, and read the answers.
        """
        model = f"/v1/models/{self._name}"
        routes = [
            Route("/", self._answered(self._home, "page")),
            Route("/healthz", self._answered(self._health, "health")),
            Route("/metrics", self._answered(self._measured, "metrics")),
            Route("/v1/detect", self._answered(self._detect, "detect"), methods=["POST"]),
            Route(f"{model}:predict", self._answered(self._predict, "predict"), methods=["POST"]),
            Route(
                f"{model}/versions/{{version:int}}:predict",
                self._answered(self._predict, "predict"),
                methods=["POST"],
            ),
            *(
                Route(f"{model}{middle}{end}", self._answered(handler, "state"))
                for middle in ("", "/versions/{version:int}")
                for end, handler in (("", self._state), ("/metadata", self._metadata))
            ),
        ]
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, "[::1]"])
        return Starlette(
            routes=routes,
            middleware=[hosts] if host in LOOPBACK else [],
            exception_handlers={HTTPException: self._of_starlette},
        )

    def close(self) -> None:
        """Runs what waits, then ends the threads."""
        self._models.current.batcher.close()
        self._pool.shutdown()

    def _answered(self, handler: Callable[[Request], Any], route: str) -> Callable[..., Any]:
        """A handler with the token, the metrics, and an answer for every error."""

        async def endpoint(request: Request) -> Response:
            started = time.perf_counter()
            try:
                self._check_token(request)
                response: Response = await handler(request)
            except Refused as refused:
                response = _error(refused)
                self._metrics.errors.labels(refused.kind).inc()
            except ClientDisconnect:
                response = Response(status_code=499)  # nobody reads it; the status is logged
                self._metrics.errors.labels("disconnected").inc()
            except Exception:  # a fault of ours: the log has it, the client must not
                _LOG.exception("a request to %s failed", route)
                response = _error(Refused(500, "internal", "the server failed; its log says why"))
                self._metrics.errors.labels("internal").inc()
            self._metrics.requests.labels(route, response.status_code).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - started)
            return response

        return endpoint

    def _check_token(self, request: Request) -> None:
        if not self._token or request.url.path in _OPEN:
            return
        header = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(header, f"Bearer {self._token}".encode()):
            raise Refused(401, "unauthorized", "give the token: Authorization: Bearer TOKEN")

    async def _home(self, request: Request) -> Response:
        return HTMLResponse(self._page, headers={"Content-Security-Policy": self._policy})

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _measured(self, request: Request) -> Response:
        text, content_type = self._metrics.text()
        return Response(text, headers={"Content-Type": content_type})

    async def _state(self, request: Request) -> Response:
        self._check_version(request)
        states = self._models.states
        if number := request.path_params.get("version"):
            states = {number: states[number]}
        return JSONResponse(protocol.status(states))

    async def _metadata(self, request: Request) -> Response:
        self._check_version(request)
        current = self._models.current
        return JSONResponse(protocol.metadata(self._name, current.number, current.outputs))

    def _check_version(self, request: Request) -> None:
        number = request.path_params.get("version")
        if number is not None and number != self._models.current.number:
            raise Refused(
                404,
                "no_version",
                f"Servable not found for request: Specific({self._name}, {number}); version "
                f"{self._models.current.number} is served",
            )

    async def _predict(self, request: Request) -> Response:
        self._check_version(request)
        with self._admitted():
            body = await self._body(request)
            parsed = await self._in_pool(protocol.parse_predict, body)
            runs = await asyncio.gather(*(self._in_pool(self._run, each) for each in parsed.images))
            rows = [run.outputs for run in runs]
            text = await self._in_pool(protocol.predictions, rows, parsed)
        return Response(text, media_type="application/json")

    async def _detect(self, request: Request) -> Response:
        with self._admitted():
            # Before the body, so that a typing mistake is found at once.
            passes = await self._filter_of(request)
            started = time.perf_counter()
            encoded = await self._image_file(request)
            seconds = time.perf_counter() - started
            text = await self._in_pool(self._answer, encoded, passes, seconds)
        return Response(text, media_type="application/json")

    def _answer(self, encoded: bytes, passes: Filter, upload_seconds: float) -> str:
        """The detections as JSON."""
        started = time.perf_counter()
        run = self._run(encoded)
        times = {
            "milliseconds": round(1000 * (time.perf_counter() - started), 1),
            "upload_milliseconds": round(1000 * upload_seconds, 1),
        }
        detections = run.version.detector.detections_of(run.outputs, run.image_size)
        answer = {
            "model": self._name,
            "version": run.version.number,
            "height": run.image_size[0],
            "width": run.image_size[1],
            **times,
            "detections": json_entries(passes.apply(detections)),
        }
        return json.dumps(answer)

    async def _filter_of(self, request: Request) -> Filter:
        """`?threshold=0.5|auto&classes=cat,dog`."""
        parameters = request.query_params
        if unknown := sorted(set(parameters) - {"threshold", "classes"}):
            raise bad_request(f"unknown parameter {plain(unknown[0])}; known: threshold, classes")
        detector = self._models.current.detector
        threshold: Any = parameters.get("threshold", str(DEFAULT_MIN_SCORE))
        if threshold == AUTO:
            try:
                threshold = await self._in_pool(detector.best_thresholds)  # reads a file
            except (RunError, OSError):  # their texts contain paths
                raise bad_request(
                    "threshold=auto needs the thresholds of an evaluation, and the model has none; "
                    "give a number"
                ) from None
        else:
            threshold = _score(threshold)
        names = list(filter(None, names_of(parameters.get("classes", ""))))
        return Filter(threshold, _class_ids(detector, names) if names else None)

    async def _image_file(self, request: Request) -> bytes:
        """The body, or the first file of a form."""
        body = await self._body(request)
        if not request.headers.get("content-type", "").startswith("multipart/"):
            return body
        try:
            async with _form(request, body) as form:
                for _, value in form.multi_items():
                    if not isinstance(value, str):
                        return bytes(await value.read())
        except HTTPException as error:
            raise bad_request(f"the form cannot be read: {plain(error.detail)}") from None
        raise bad_request("the form has no file")

    async def _body(self, request: Request) -> bytes:
        limit = self._limits.body_bytes
        too_large = Refused(
            413, "too_large", f"the request has more than {limit >> 20} MiB; reduce the image"
        )
        length = request.headers.get("content-length", "0")
        if length.isascii() and length.isdecimal() and int(length) > limit:
            raise too_large

        async def read() -> bytes:
            parts: List[bytes] = []
            count = 0
            async for part in request.stream():
                count += len(part)
                if count > limit:
                    raise too_large
                parts.append(part)
            return b"".join(parts)

        try:
            return await asyncio.wait_for(read(), _BODY_SECONDS)
        except asyncio.TimeoutError:
            raise Refused(
                408, "slow", f"the request was not sent within {_BODY_SECONDS} seconds"
            ) from None

    @contextlib.contextmanager
    def _admitted(self) -> Iterator[None]:
        """Counts a request that costs memory; refuses it when too many are under way."""
        if self._under_way >= self._limits.queue:
            raise Refused(503, "overloaded", "too many requests are under way", _RETRY_AFTER)
        self._under_way += 1
        self._metrics.queue.set(self._under_way)
        try:
            yield
        finally:
            self._under_way -= 1
            self._metrics.queue.set(self._under_way)

    def _run(self, image: protocol.Image) -> _Run:
        """Decodes an image and waits for the model's outputs."""
        with self._decoding:
            size, version, future = self._submit(image)
        try:
            return _Run(size, version, future.result())
        except BackendError as error:
            _LOG.error("%s", error)
            raise Refused(502, "backend", "the server of the model does not answer") from None
        except tf.errors.ResourceExhaustedError:
            raise Refused(503, "memory", "there is too little memory", _RETRY_AFTER) from None
        except tf.errors.OpError as error:
            _LOG.error("the model fails: %s", plain(failures.reason(error)))
            text = f"the model cannot use an image of {size[1]} x {size[0]} pixels"
            raise Refused(400, "bad_image", text) from None

    def _submit(self, image: protocol.Image) -> Tuple[Tuple[int, int], Version, Any]:
        """Decodes an image and queues it; its height and width, the version and the outputs."""
        if isinstance(image, bytes):
            try:
                file = decode_image(image, self._limits.pixels)
            except OSError as error:
                raise Refused(400, "bad_image", f"the image: {plain(str(error))}") from None
            pixels, size = file.pixels, (file.height, file.width)
        else:
            pixels, size = image, (image.shape[0], image.shape[1])
        try:
            version, future = self._models.submit(pixels)
        except Full:
            raise Refused(503, "overloaded", "too many pixels wait", _RETRY_AFTER) from None
        return size, version, future

    async def _of_starlette(self, request: Request, error: Exception) -> Response:
        """The answer to an unknown path or method."""
        assert isinstance(error, HTTPException)
        text = error.detail
        if error.status_code == 404:
            text = f"there is no {plain(request.url.path)}; the model is /v1/models/{self._name}"
        return JSONResponse({"error": text}, error.status_code, error.headers)

    async def _in_pool(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)


def _error(refused: Refused) -> Response:
    wait = refused.retry_after
    headers = {} if wait is None else {"Retry-After": str(wait)}
    return JSONResponse({"error": refused.text}, refused.status, headers)


def _score(text: str) -> float:
    with contextlib.suppress(ValueError):
        score = float(text)
        if 0 <= score <= 1:
            return score
    raise bad_request(f"threshold is {plain(text)}; give a number from 0 to 1, or {AUTO}")


def _class_ids(detector: Detector, names: List[str]) -> List[int]:
    ids = {name: class_id for class_id, name in detector.class_names.items()}
    if unknown := [name for name in names if name not in ids]:
        known = plain(", ".join(ids)) or "it has no label map"
        raise bad_request(f"the model has no class {plain(unknown[0])}; known: {known}")
    return [ids[name] for name in names]


@contextlib.asynccontextmanager
async def _form(request: Request, body: bytes) -> AsyncIterator[Any]:
    """The form of a body that has been read."""

    async def receive() -> Dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    form = await Request(request.scope, receive).form(max_files=1, max_fields=10)
    try:
        yield form
    finally:
        await form.close()


def _page(name: str) -> Tuple[str, str]:
    """The page, and the policy that lets only its own script and style act."""
    page = _PAGE.read_text(encoding="utf-8").replace("{{name}}", html.escape(name))
    sources: Dict[str, str] = {}
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*)</{tag}>", page, re.DOTALL)
        digest = hashlib.sha256(content.encode()).digest()
        sources[tag] = f"'sha256-{base64.b64encode(digest).decode()}'"
    return page, (
        f"default-src 'none'; script-src {sources['script']}; style-src {sources['style']}; "
        "img-src 'self' blob: data:; media-src blob:; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
