"""Faults of the API server: each request that the agent makes, with all that can become of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent.model.reason import Reason
from tests.cluster.fake.status import failure
from tests.cluster.fault_proxy import Body, FaultProxy
from tests.cluster.manners import Manner
from tests.faults.table import Row, Side

ENDLESS = math.inf


@dataclass(frozen=True, slots=True)
class Asked:
    """A kind of request."""

    name: str
    method: str = ""
    path: str = ""
    """A regular expression that is found in the path."""
    watch: bool | None = None
    pods: bool = False
    """Whether the agent learns of pods by it: of new ones it knows nothing without."""

    def how(self) -> dict[str, Any]:
        """As the fault proxy is told."""
        return {"method": self.method, "path": self.path, "watch": self.watch, "times": ENDLESS}


_PLANS = "/cpubindingplans$"
LIST_PODS = Asked("list pods", "GET", "^/api/v1/pods$", False, pods=True)
WATCH_PODS = Asked("watch pods", "GET", "^/api/v1/pods$", True, pods=True)
LIST_PLANS = Asked("list cpubindingplans", "GET", _PLANS, False)
WATCH_PLANS = Asked("watch cpubindingplans", "GET", _PLANS, True)
GET_NODE = Asked("get nodes", "GET", "^/api/v1/nodes/")
CREATE_PLAN = Asked("create cpubindingplans", "POST", _PLANS)
PATCH_STATUS = Asked("patch cpubindingplans/status", "PATCH", "/cpubindingplans/.*/status$")
CREATE_EVENT = Asked("create events", "POST", "/events$")
PATCH_EVENT = Asked("patch events", "PATCH", "/events/")
EVERYTHING = Asked("everything", pods=True)
REVIEW = Asked("create selfsubjectaccessreviews (doctor)", "POST", "/selfsubjectaccessreviews$")

OF_THE_AGENT = (
    *(EVERYTHING, LIST_PODS, WATCH_PODS, LIST_PLANS, WATCH_PLANS),
    *(GET_NODE, CREATE_PLAN, PATCH_STATUS, CREATE_EVENT, PATCH_EVENT),
)

Begin = Callable[[FaultProxy, Asked], None]


@dataclass(frozen=True, slots=True)
class ApiRow(Row):
    """A fault of one kind of request; `begin` brings it about, until the proxy heals."""

    asked: Asked = EVERYTHING
    begin: Begin = lambda _proxy, _asked: None
    brief: bool = False
    """Whether it may be told, and may be over before the agent's next look."""


def _answer(code: int, body: Body | None = None, **how: Any) -> Begin:
    return lambda proxy, asked: proxy.answer(code, body, **how, **asked.how())


def _made(body: Body, **how: Any) -> Begin:
    """With the code of success."""

    def begin(proxy: FaultProxy, asked: Asked) -> None:
        proxy.answer(201 if asked.method == "POST" else 200, body, **how, **asked.how())

    return begin


def _mishandle(manner: Manner) -> Begin:
    return lambda proxy, asked: proxy.mishandle(manner, **asked.how())


def _later(wait: str) -> Begin:
    """429, with that Retry-After; with the same in the body where it is a number, as Kubernetes has it."""
    details: Mapping[str, Any] = {"retryAfterSeconds": int(wait)} if wait.lstrip("-").isdigit() else {}
    body = {**failure(429, "TooManyRequests", "too many requests"), "details": details}
    return _answer(429, body, headers={"Retry-After": wait})


def _forbidden(proxy: FaultProxy, asked: Asked) -> None:
    verb, _, resource = asked.name.partition(" ")
    said = f'{resource} is forbidden: User "cpubind" cannot {verb} resource "{resource}" at the cluster scope'
    proxy.answer(403, failure(403, "Forbidden", said), **asked.how())


PAGE = b"<!DOCTYPE html><html><head><title>Log in</title></head><body><form action='/login'></form></body></html>"
ELSEWHERE = {"Location": "https://127.0.0.1:9/login"}
WRONG_KIND = {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "a2-0", "uid": "1", "resourceVersion": "9"}}
WRONG_LIST = {"kind": "SecretList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": []}

FAULTS: dict[str, Begin] = {
    "reset before the answer": _mishandle(Manner.RESET),
    "reset within the answer": _mishandle(Manner.RESET_MIDWAY),
    "half-open before the answer": _mishandle(Manner.SILENCE),
    "half-open within the answer": _mishandle(Manner.SILENCE_MIDWAY),
    "slow body": _mishandle(Manner.SLOW),
    "slow from the first byte": _mishandle(Manner.SLOW_HEAD),
    "endless body": _mishandle(Manner.ENDLESS),
    "body cut short": _mishandle(Manner.SHORT),
    "JSON that ends early": lambda proxy, asked: proxy.truncate(**asked.how()),
    "another content type": _mishandle(Manner.MISLABELLED),
    "307": _answer(307, b"", headers=ELSEWHERE),
    "401": _answer(401),
    "403": _forbidden,
    "404": _answer(404),
    "409": _answer(409),
    "410": _answer(410),
    "422": _answer(422),
    "429": _answer(429),
    "429 for a second": _later("1"),
    "429 for -1": _later("-1"),
    "429 for 1000000000": _later("1000000000"),
    "429 for soon": _later("soon"),
    "500": _answer(500),
    "502": _answer(502, b"bad gateway", content_type="text/plain"),
    "503": _answer(503, PAGE, content_type="text/html"),
    "504": _answer(504),
    "login page": _made(PAGE, content_type="text/html"),
    "no body": _made(b""),
    "no text": _made(b"\xff\xfe\x00{"),
    "list": _made(b"[]"),
    "null": _made(b"null"),
    "number": _made(b"4711"),
    "no metadata": _made({}),
    "null as metadata": _made({"kind": "PodList", "metadata": None, "items": None, "status": None}),
    "another kind": _made(WRONG_KIND),
    "a list of another kind": _made(WRONG_LIST),
    "a Status": _made({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 200}),
}
"""What can become of any single request."""

SLOW_ANSWERS = "slow answers"
CONNECTIONS: dict[str, Begin] = {
    "refused": lambda proxy, _: proxy.refuse(),
    "half-open": lambda proxy, _: proxy.hang(),
    "half-open before TLS": lambda proxy, _: proxy.hang("handshake"),
    SLOW_ANSWERS: lambda proxy, _: proxy.delay(1.0),
    "another CA": lambda proxy, _: proxy.change_ca(),
}
"""What can become of the connection to an API server."""


def _of(line: Body, path: str) -> Begin:
    """Every watch that is opened begins with this line."""

    def begin(proxy: FaultProxy, asked: Asked) -> None:
        text = line if isinstance(line, bytes) else json.dumps(line)
        proxy.answer(200, text if isinstance(text, bytes) else text.encode() + b"\n", **asked.how())

    return begin


STREAMS: dict[str, Body] = {
    "ERROR 410": {"type": "ERROR", "object": failure(410, "Expired", "too old resource version: 1 (2)")},
    "ERROR 500": {"type": "ERROR", "object": failure(500, "InternalError", "etcdserver: leader changed")},
    "ERROR without a code": {"type": "ERROR", "object": {}},
    "event without an object": {"type": "MODIFIED"},
    "event with null as object": {"type": "MODIFIED", "object": None},
    "event with a list as object": {"type": "MODIFIED", "object": []},
    "event without metadata": {"type": "MODIFIED", "object": {}},
    "event with null as metadata": {"type": "MODIFIED", "object": {"metadata": None}},
    "DELETED without metadata": {"type": "DELETED", "object": {"kind": "Pod"}},
    "event with another kind": {"type": "MODIFIED", "object": WRONG_KIND},
    "BOOKMARK without metadata": {"type": "BOOKMARK", "object": {}},
    "event of an unknown type": {"type": "EXPLODED", "object": {"metadata": {"name": "a2-0"}}},
    "half a line": b'{"type": "MODIFIED", "obj',
    "NUL": b"\x00{\n",
}
"""Lines of a watch."""

REFUSALS = ("307", "403", "404", "409", "422")
"""Who answers so is well, and does not want to."""

LOSE_EVENTS = (*REFUSALS, "410")
"""An event that is refused so is not sent again."""

_REASONS: dict[tuple[Asked, str], Reason | None] = {
    (GET_NODE, "404"): Reason.NODE_NOT_FOUND,
    **{(asked, "404"): Reason.PLAN_RESOURCE_MISSING for asked in (LIST_PLANS, WATCH_PLANS)},
    (CREATE_PLAN, "404"): Reason.PLAN_RESOURCE_MISSING,
    **{(CREATE_EVENT, code): None for code in ("404", "409")},
    **{(PATCH_EVENT, code): None for code in ("404", "409")},
}
_WHY = {
    (CREATE_EVENT, "404"): "the namespace is gone",
    (CREATE_EVENT, "409"): "it was posted before",
    (PATCH_EVENT, "404"): "the event is posted anew",
    (PATCH_EVENT, "409"): "somebody else changes it",
}
_HARMLESS = "another content type"
_DONE = (
    *("reset within the answer", "half-open within the answer", "slow body", "slow from the first byte"),
    *("body cut short", "JSON that ends early"),
)
"""The API server has done what it was asked for."""
_THROUGH_THE_CLIENT = (EVERYTHING, LIST_PODS, LIST_PLANS, CREATE_PLAN, PATCH_STATUS)
"""kopf and the kubernetes client take nothing for JSON that is not called so."""
_SEEN = {
    **{(asked, fault): "it was done, which the watch says" for asked in (CREATE_PLAN, PATCH_STATUS) for fault in _DONE},
    (CREATE_EVENT, "JSON that ends early"): "it was done, which the 409 of the second attempt says",
}
"""What came of these is seen all the same; ApiUnreachable is told until then, if anybody looks so soon."""


def _row(asked: Asked, fault: str, begin: Begin, *, quick: bool = False) -> ApiRow:
    reason: Reason | None = Reason.API_REFUSED if fault in REFUSALS else Reason.API_UNREACHABLE
    why = _WHY.get((asked, fault), "")
    if (asked, fault) in _REASONS:
        reason = _REASONS[asked, fault]
    elif fault == SLOW_ANSWERS:
        reason, why = None, "they come within the time that an answer may take"
    elif fault == _HARMLESS and asked not in _THROUGH_THE_CLIENT:
        reason, why = None, "JSON is JSON"
    brief = (asked, fault) in _SEEN
    if brief:
        reason, why = None, _SEEN[asked, fault]
    return ApiRow(Side.API, asked.name, fault, reason, why, quick, asked=asked, begin=begin, brief=brief)


_QUICK = {(LIST_PODS, "500"), (CREATE_PLAN, "409")}

AGENT_ROWS: tuple[ApiRow, ...] = tuple(
    _row(asked, fault, begin, quick=(asked, fault) in _QUICK)
    for asked in OF_THE_AGENT
    for fault, begin in (
        *(CONNECTIONS.items() if asked is EVERYTHING else ()),
        *FAULTS.items(),
        *((name, _of(line, asked.path)) for name, line in STREAMS.items() if asked.watch),
    )
)
"""What the agent that runs can meet."""

DOCTOR_ROWS: tuple[ApiRow, ...] = tuple(
    _row(REVIEW, fault, begin)
    for fault, begin in (*CONNECTIONS.items(), *FAULTS.items())
    if fault != SLOW_ANSWERS  # there are nine of them for the doctor to wait for
)
"""What a command meets that asks whether the agent may do what it has to."""

REASONS: dict[str, frozenset[Reason]] = {
    fault: frozenset(row.reason for row in AGENT_ROWS if row.fault == fault and row.reason)
    for fault in {row.fault for row in AGENT_ROWS}
}
"""Fault -> what is reported of one kind of request or another that fails so."""

ROWS: tuple[Row, ...] = (*AGENT_ROWS, *DOCTOR_ROWS)
