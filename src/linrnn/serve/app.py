"""The application: its paths, and what they do."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from linrnn import __version__
from linrnn.errors import LinrnnError, MissingExtraError, show
from linrnn.serve import openai
from linrnn.serve.guard import ROUTE, Guard
from linrnn.serve.limits import Limits
from linrnn.serve.metrics import Metrics
from linrnn.serve.problems import RequestError, as_json, internal, json_bytes, status_of
from linrnn.serve.requests import body_of, check_fields, json_of, while_there
from linrnn.serve.series import Call, Open, Series, no_session
from linrnn.serve.worker import Order, Worker
from linrnn.serve.writer import Text, Writer
from linrnn.train.context import Trained

_LONGEST_ID = 200  # characters
_FOLDED = (".", "..")  # clients remove them from a path, so no request would reach the session
_JSON = "application/json"


def application(
    runs: Mapping[str, Trained],
    *,
    state: Path | None = None,
    token: str | None = None,
    limits: Limits | None = None,
) -> Guard:
    """An ASGI application that answers with trained runs.

    Args:
        runs: by the names that clients know them by.
        state: a folder in which sessions outlive the process. None: they end with it.
        token: that requests must bring. None: they must come to a loopback name.
        limits: of what it takes. Default: those of `Limits`.

    Raises:
        MissingExtraError: FastAPI is not installed.
        DataError, ArgumentError: what the folder holds is damaged, or of other models.
    """
    try:
        from fastapi import FastAPI
        from starlette.routing import Route
    except ImportError as error:
        raise MissingExtraError("linrnn.serve", "fastapi", "serve") from error
    limits, metrics = limits or Limits(), Metrics()
    service = Service(runs, state, limits, metrics)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    routes: list[Any] = [Route(p, _endpoint(p, h), methods=[m]) for p, m, h in service.paths()]
    inner = FastAPI(version=__version__, lifespan=lifespan, openapi_url=None, routes=routes)
    # a path with a slash too many is an error that says so, not an empty answer that points away
    inner.router.redirect_slashes = False
    for kind in (LinrnnError, Exception):
        inner.add_exception_handler(kind, _refused)
    inner.add_exception_handler(404, _no_such_path)
    inner.add_exception_handler(405, _no_such_method)
    return Guard(inner, token, limits, metrics)


def _endpoint(path: str, handler: Callable[[Any], Awaitable[Any]]) -> Any:
    """A handler that may return what JSON has."""
    from starlette.responses import Response

    async def answer(request: Any) -> Any:
        request.scope[ROUTE] = path
        value = await handler(request)
        if isinstance(value, Response):
            return value
        status = 200
        if isinstance(value, Created):
            status, value = 201, value.value
        return Response(json_bytes(value), status_code=status, media_type=_JSON)

    return answer


class Created(NamedTuple):
    """The result of a creation."""

    value: Any


class Service:
    """All runs, and the handler of each path.

    Args:
        runs, state, limits: as of `application`.
        metrics: counts.
    """

    def __init__(
        self, runs: Mapping[str, Trained], state: Path | None, limits: Limits, metrics: Metrics
    ) -> None:
        self._limits, self._metrics = limits, metrics
        self._writers: dict[str, Writer] = {}
        self._series: dict[str, Series] = {}
        self._workers: list[Worker] = []
        for name, run in runs.items():
            if run.task.tokenizer is not None:
                self._writers[name] = Writer(name, run, limits, metrics)
                self._workers.append(self._writers[name].worker)
            else:
                folder = None if state is None else state / name
                self._series[name] = Series(name, run, folder, limits, metrics)
                self._workers.append(self._series[name].worker)

    def close(self) -> None:
        """Finish what runs, and write the states of all sessions."""
        for worker in self._workers:
            worker.close()

    def paths(self) -> list[tuple[str, str, Any]]:
        """Every path with its method and what answers."""
        return [
            ("/health", "GET", self.health),
            ("/metrics", "GET", self.metrics),
            ("/v1/models", "GET", self.models),
            ("/v1/completions", "POST", self.completions),
            ("/v1/chat/completions", "POST", self.chat),
            ("/sessions", "GET", self.list_sessions),
            ("/sessions", "POST", self.open_session),
            ("/sessions/feed", "POST", self.feed_many),
            ("/sessions/{name}", "GET", self.get_session),
            ("/sessions/{name}", "DELETE", self.close_session),
            ("/sessions/{name}/feed", "POST", self.feed_one),
            ("/sessions/{name}/snapshot", "GET", self.snapshot),
            ("/sessions/{name}/restore", "POST", self.restore),
        ]

    async def health(self, _: Any) -> Any:
        """Whether it runs."""
        return {"status": "ok", "version": __version__}

    async def metrics(self, _: Any) -> Any:
        """Counts for Prometheus."""
        from starlette.responses import PlainTextResponse

        kind = "text/plain; version=0.0.4; charset=utf-8"
        return PlainTextResponse(self._metrics.text(), media_type=kind)

    async def models(self, _: Any) -> Any:
        """List the models."""
        entries: list[dict[str, Any]] = [
            {"id": name, "object": "model", "owned_by": "linrnn", "writes": True}
            for name in self._writers
        ]
        entries += [
            {"id": name, "object": "model", "owned_by": "linrnn", "writes": False, **s.described()}
            for name, s in self._series.items()
        ]
        return {"object": "list", "data": entries}

    async def completions(self, request: Any) -> Any:
        """Texts after prompts."""
        body = await json_of(request, self._limits.body)
        prompts = openai.completion_prompts(body)
        return await self._write(request, openai.COMPLETION, body, prompts)

    async def chat(self, request: Any) -> Any:
        """Complete a chat."""
        body = await json_of(request, self._limits.body)
        return await self._write(request, openai.CHAT, body, [openai.chat_prompt(body)])

    async def _write(
        self, request: Any, form: openai.Form, body: dict[str, Any], prompts: list[Any]
    ) -> Any:
        from starlette.responses import StreamingResponse

        writer = _pick("a language model", self._writers, body.get("model"))
        stream, usage = openai.streamed(form, body)
        texts: list[Text] = openai.orders(form, body, prompts, writer, self._limits)
        if not stream:
            return await while_there(request, openai.answer(form, texts, writer))
        events = openai.stream(form, texts, writer, usage=usage)
        return StreamingResponse(events, media_type="text/event-stream")

    async def list_sessions(self, request: Any) -> Any:
        """The ids of open sessions."""
        series = self._series_of(request.query_params.get("model"))
        return {"model": series.name, "ids": list(series.store.sessions)}

    async def open_session(self, request: Any) -> Any:
        """Open a session, or several."""
        body = await json_of(request, self._limits.body)
        check_fields("sessions", body, dict.fromkeys(("model", "id", "ids"), ...))
        series, ids = self._series_of(body.get("model")), body.get("ids")
        if ids is not None and body.get("id") is not None:
            raise RequestError(
                400, f"sessions: id must be left out where there are ids, got {show(body['id'])}."
            )
        if ids is None:
            name = uuid.uuid4().hex if body.get("id") is None else _checked(body["id"])
            (answer,) = await self._do(series, Open([name]))
            if isinstance(answer, LinrnnError):
                raise answer
            return Created(answer)
        if not isinstance(ids, list):
            raise RequestError(400, f"sessions: ids must be a list of texts, got {show(ids)}.")
        names = [_checked(name) for name in ids]
        answers = await self._do(series, Open(names))
        opened = [name for name, a in zip(names, answers, strict=True) if isinstance(a, dict)]
        return Created({"model": series.name, "ids": opened, "errors": _errors(names, answers)})

    async def get_session(self, request: Any) -> Any:
        """How much a session has read."""
        return await self._done("look", request)

    async def close_session(self, request: Any) -> Any:
        """Close a session."""
        return await self._done("close", request)

    async def snapshot(self, request: Any) -> Any:
        """The state of a session, as a file."""
        from starlette.responses import Response

        data = await self._done("snapshot", request)
        return Response(data, media_type="application/octet-stream")

    async def _done(self, what: str, request: Any) -> Any:
        name = request.path_params["name"]
        series = self._having(name, request.query_params.get("model"))
        return await self._do(series, Call(what, name))

    async def restore(self, request: Any) -> Any:
        """Open a session that goes on from such a file."""
        name = _checked(request.path_params["name"])
        series = self._series_of(request.query_params.get("model"))
        # what this service has written it reads again, however wide the model
        data = await body_of(request, max(self._limits.body, series.store.most))
        return Created(await self._do(series, Call("restore", name, data)))

    async def feed_one(self, request: Any) -> Any:
        """Feed one session."""
        name = request.path_params["name"]
        body = await json_of(request, self._limits.body)
        check_fields("feed", body, dict.fromkeys(("model", "x", "dt"), ...))
        dt = None if body.get("dt") is None else [body["dt"]]
        series = self._having(name, body.get("model"))
        (answer,) = await self._feed(series, [name], [body.get("x")], dt)
        if isinstance(answer, LinrnnError):
            raise answer
        return {"id": name, **answer}

    async def feed_many(self, request: Any) -> Any:
        """Feed many sessions; each gets its answer or its error."""
        body = await json_of(request, self._limits.body)
        check_fields("feed", body, dict.fromkeys(("model", "ids", "x", "dt"), ...))
        ids = body.get("ids")
        if not isinstance(ids, list) or not ids:
            raise RequestError(400, f"feed: ids must be a list of texts, got {show(ids)}.")
        series = self._series_of(body.get("model"))
        answers = await self._feed(series, ids, body.get("x"), body.get("dt"))
        fine: list[Any] = [{} if isinstance(a, LinrnnError) else a for a in answers]
        columns = {"y": [one.get("y") for one in fine]}
        if any("probabilities" in one for one in fine):
            columns["probabilities"] = [one.get("probabilities") for one in fine]
        return {"ids": list(map(_echo, ids)), **columns, "errors": _errors(ids, answers)}

    async def _feed(self, series: Series, ids: list[Any], x: Any, dt: Any) -> list[Any]:
        order, places, errors = series.read(ids, x, dt)
        answers: list[Any] = [errors.get(i) for i in range(len(ids))]
        if len(set(order.names)) < len(order.names):
            raise RequestError(400, "feed: ids must each come once. Send a chunk of several steps.")
        if places:
            for place, one in zip(places, await self._do(series, order), strict=True):
                answers[place] = one
        return answers

    def _having(self, name: str, model: str | None) -> Series:
        """The run that has a session, where no other is named."""
        if model is None and len(self._series) > 1:
            having = [s for s in self._series.values() if name in s.store.sessions]
            if not having:
                raise no_session(name)
            if len(having) == 1:
                return having[0]
        return self._series_of(model)

    def _series_of(self, model: Any) -> Series:
        series: Series = _pick("a run that reads series", self._series, model)
        return series

    async def _do(self, series: Series, order: Order) -> Any:
        """Wait for what a worker makes of an order, as long as a request may take."""
        future = asyncio.wrap_future(series.worker.submit(order))
        try:
            # what has begun is done, whether or not somebody still waits for it
            return await asyncio.wait_for(asyncio.shield(future), self._limits.seconds)
        except asyncio.TimeoutError as error:
            raise RequestError(
                504,
                f"serve: a request must be done in {self._limits.seconds:g} s, got none. It "
                "may still be done: look at the steps of the session.",
                "timeout",
            ) from error


def _pick(what: str, among: Mapping[str, Any], name: Any) -> Any:
    """The model of this name, or the only one."""
    if name is None and len(among) == 1:
        return next(iter(among.values()))
    if not isinstance(name, str) or name not in among:
        must = f"model must be {what} of {', '.join(among)}, got {show(name)}."
        if not among:
            must = f"the service must have {what}, got none. Start it with such a run."
        raise RequestError(404, f"serve: {must}", "no_model")
    return among[name]


def _checked(name: Any) -> str:
    fits = isinstance(name, str) and 0 < len(name) <= _LONGEST_ID and name.isprintable()
    if not fits or "/" in name or name in _FOLDED:
        raise RequestError(
            400,
            f"sessions: id must be a text of 1 to {_LONGEST_ID} characters without /, and not a "
            f"dot or two, got {show(name)}.",
        )
    return str(name)


def _errors(ids: Sequence[Any], answers: Sequence[Any]) -> list[dict[str, Any]]:
    """The errors among answers, each with the place and the id of its session."""
    return [
        {"index": i, "id": _echo(name), **as_json(answer)}
        for i, (name, answer) in enumerate(zip(ids, answers, strict=True))
        if isinstance(answer, LinrnnError)
    ]


def _echo(name: Any) -> Any:
    """An id as it came; what is none as JSON can say it."""
    return name if name is None or isinstance(name, (str, int)) else show(name)


async def _refused(_: Any, error: Any) -> Any:
    from starlette.responses import Response

    reported = error if isinstance(error, LinrnnError) else internal()
    data = json_bytes({"error": as_json(reported)})
    return Response(data, status_code=status_of(reported), media_type=_JSON)


async def _no_such_path(request: Any, error: Any) -> Any:
    what = f"serve: the path must be one of the service, got {show(request.url.path)}."
    return await _refused(request, RequestError(error.status_code, what, "no_path"))


async def _no_such_method(request: Any, _: Any) -> Any:
    """The answer where a path is there for other methods, all of which ``Allow`` lists."""
    from starlette.routing import Match

    fitting = [r for r in request.app.routes if r.matches(request.scope)[0] != Match.NONE]
    allowed = ", ".join(sorted({method for route in fitting for method in route.methods}))
    what = f"serve: the method of {show(request.url.path)} must be one of {allowed}, got "
    error = RequestError(405, f"{what}{show(request.method)}.", "no_method")
    response = await _refused(request, error)
    response.headers["Allow"] = allowed
    return response
