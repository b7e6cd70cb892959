"""Questions about plans: what is created, applied and edited, by whom."""

from __future__ import annotations

from typing import Any

from tests.cluster.client import APPLY_PATCH, JSON, MERGE_PATCH
from tests.cluster.cluster import FIELD_MANAGER
from tests.cluster.objects import PLANS
from tests.cluster.script import PLAN, STRATEGIC, Script, keyed, plan

Object = dict[str, Any]


def plans(to: Script) -> None:
    to.ask(
        "POST", PLAN, plan("a", spec={"mode": "Enforce", "zork": 1}, status={"mode": "x"}), query={"fieldManager": "me"}
    )
    to.ask("POST", PLAN, plan("a"))
    for spec in (
        {"mode": "Nope"},
        {"mode": 3},
        {"reservedCpus": "x"},
        {"threadRules": [{"prefix": "", "role": "main"}]},
        {"threadRules": [{"prefix": "a", "role": "main"}] * 65},
    ):
        to.ask("POST", PLAN, plan("b", spec=spec))
    for body in (
        plan("B_"),
        plan(""),
        {**plan("b"), "kind": "Other"},
        {**plan("b"), "apiVersion": "cpubind.dev/v1"},
    ):
        to.ask("POST", PLAN, body)
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n"}
    for more in ({"ownerReferences": [owner]}, {"resourceVersion": "5"}, {"annotations": {"x y": "3"}}):
        to.ask("POST", PLAN, plan("b", metadata={"name": "b", **more}))
    to.ask("PUT", PLAN, plan("a"))
    to.ask("PATCH", PLAN, {}, MERGE_PATCH)
    to.ask("GET", f"{PLAN}/a/status")
    to.ask("GET", PLAN, query={"fieldSelector": "spec.mode=Enforce"})
    for query in (
        {"resourceVersion": "x"},
        {"resourceVersion": "99999999"},
        {"limit": "x"},
        {"timeoutSeconds": "x"},
    ):
        to.ask("GET", PLAN, query=query)
    for selector in ("metadata.name=a", "metadata.name!=a"):
        to.ask("GET", PLAN, query={"fieldSelector": selector})


def refused_applies(to: Script) -> None:
    a = {"type": "A", "status": "True"}
    for status in (
        {"foo": 1},
        {"npus": [{"id": 2, "bar": 1}]},
        {"npus": "x"},
        {"mode": 1},
        {"summary": {"npus": "x"}},
        {"summary": "x"},
        {"list": [a, a]},
        {"list": [{"status": "True"}]},
        {"list": [{**a, "zork": 1}]},
        {"npus": [{"pool": "1"}]},
        {"npus": [{"id": number} for number in range(513)]},
        {"observedGeneration": -1},
        {"observedGeneration": 1.5},
        {"observedGeneration": True},
        {"observedGeneration": 2.0},
        {"planHash": "x" * 65},
        {"mode": None},
        {"number": 7},
        {"number": 1.5},
        {"time": "yesterday"},
    ):
        to.apply("a", status)
    to.apply("a", {"mode": "b"}, spec={"zork": 1})
    to.apply("a", {"mode": "b"}, zork=1)
    to.apply("a", {"mode": "b"}, spec={"mode": "DryRun"})
    for more in ({"labels": {"q": "r"}}, {"name": "other"}, {"resourceVersion": "5"}, {"uid": "5"}):
        to.apply("a", {"mode": "b"}, metadata={"name": "a", **more})
    for fields in ([], [{"manager": "x"}]):
        to.apply("a", {"mode": "b"}, metadata={"name": "a", "managedFields": fields})
    to.apply("a", {"mode": "b"}, kind="Other")
    to.apply("a", {"mode": "b"}, apiVersion="cpubind.dev/v1")
    to.apply("a", {"mode": "b"}, manager="x" * 129)
    to.apply("a", {"mode": "b"}, manager="")
    to.apply("nope", {})
    to.ask("PATCH", f"{PLAN}/a/status", "status: {mode: x}", APPLY_PATCH, query={"fieldManager": "x", "force": "true"})
    text = f"apiVersion: {PLANS.api_version}\nkind: {PLANS.kind}\nstatus: {{mode: x}}\n"
    to.ask("PATCH", f"{PLAN}/a/status", text, APPLY_PATCH, query={"fieldManager": "x", "force": "whatever"})


def applies(to: Script) -> None:
    """Each line is what one manager applies to one plan, one after the other."""
    to.sequence({"npus": [{"id": 1}], "mode": "a"}, {"mode": "a"}, {}, {"mode": "b"})
    to.sequence({"npus": [{"id": 1}]}, {"npus": []}, {"npus": [{"id": 3}]}, {})
    to.sequence({"atom": {"a": "1", "b": {"c": "x"}}}, {"atom": {}}, {"atom": {"a": "2"}, "mode": "x"}, {"mode": "x"})
    to.sequence({"set": ["a", "b"]}, {"set": ["b", "c"]}, {"set": ["c", "b"]}, {"set": ["c", "c"]}, {"set": []}, {})
    to.sequence({"free": {"a": "1", "b": "2"}}, {"free": {"b": "2"}}, {"free": {}}, {})
    to.sequence({"deep": {"x": {"y": "1"}}}, {"deep": {"x": {"z": "1"}}}, {"deep": {"x": {}}}, {"deep": {}}, {})
    to.sequence({"deep": {"x": {"y": "1"}}, "mode": "q"}, {"deep": {}, "mode": "q"}, {"mode": "q"})
    to.sequence({"null": {"y": "1"}}, {"null": {}}, {}, {})
    to.sequence({"summary": {}}, {"summary": {}}, {})
    to.sequence({"list": []}, {"list": []}, {}, {"list": keyed(A="True")}, {"list": []})
    to.sequence(
        {"list": keyed(A="True", B="True")},
        {"list": keyed(B="True", C="True")},
        {"list": keyed(D="True", C="False")},
        {"list": keyed(C="False", D="True")},
    )


def owners(to: Script) -> None:
    """A pair is what somebody else writes in between, and who that is."""
    to.sequence(
        {"summary": {"npus": 1}}, ({"summary": {"workers": 3}}, "x"), {"summary": {"npus": 1}}, {}, {"mode": "x"}
    )
    to.sequence(
        {"list": keyed(A="True")},
        ({"list": keyed(A="True", Z="True")}, "x"),
        {"list": keyed(B="True")},
        {"mode": "x"},
    )
    to.sequence({"mode": "x"}, ({"mode": "y"}, "x"), {"mode": "x"}, ({"mode": None}, "x"), {"mode": "x"})
    to.sequence(({"mode": "y", "summary": {"npus": 1}}, "x"), {"mode": "y"}, {"planHash": "y"})
    to.sequence({"summary": {"npus": 1}, "mode": "z"}, ({"summary": None}, "x"), {"summary": {"npus": 1}, "mode": "z"})
    both = {"mode": "x", "planHash": "y"}
    to.ask("POST", PLAN, plan("o", spec={}, status=both), query={"fieldManager": FIELD_MANAGER})
    to.apply("o", both, force="false")
    to.apply("o", both)
    to.apply("o", {"mode": "x"})
    to.apply("o", {"mode": "x"}, manager="second", force="false")
    to.apply("o", {"mode": "y"}, manager="second", force="false")
    to.apply("o", {"planHash": "z"}, manager="third")


def edits(to: Script) -> None:
    path = f"{PLAN}/o"
    of_spec: tuple[Object, ...] = (
        {"spec": {"mode": "DryRun"}, "status": {"mode": "NO"}},
        {"spec": {"mode": "DryRun", "nix": 1}},
        {"spec": {"mode": None}, "metadata": {"labels": {"k": "v"}}},
        {"spec": {"mode": "bad"}},
        {"metadata": {"name": "zz"}},
        {"metadata": {"resourceVersion": "1"}},
        {"metadata": {"labels": {"k": None}}},
        {"metadata": {"generation": 77, "creationTimestamp": None}},
        {"spec": None},
        {"kind": "Foo"},
    )
    for patch in of_spec:
        to.ask("PATCH", path, patch, MERGE_PATCH, query={"fieldManager": "ed"})
    of_status: tuple[Object, ...] = (
        {"spec": {"mode": "Enforce"}, "status": {"mode": "m"}, "metadata": {"annotations": {"k": "v"}}},
        {"status": {"mode": 5}},
        {"status": {"zork": 5}},
        {"status": {"list": [*keyed(A="True"), *keyed(A="True")]}},
        {"status": {"set": ["a", "a"]}},
    )
    for patch in of_status:
        to.ask("PATCH", f"{path}/status", patch, MERGE_PATCH, query={"fieldManager": "ed"})
    for media in (JSON, STRATEGIC):
        to.ask("PATCH", path, "{}", media)
    to.ask("PATCH", path, "{", MERGE_PATCH)
    now = to.ask("GET", path)
    to.ask("PUT", path, plan("o", spec={}))
    to.ask("PUT", path, {**now, "spec": {"mode": "Enforce"}, "status": {"mode": "W"}}, query={"fieldManager": "put"})
    to.ask("PUT", path, now)
    now = to.ask("GET", path)
    to.ask(
        "PUT", f"{path}/status", {**now, "spec": {}, "status": {"mode": "W", "zork": 1}}, query={"fieldManager": "put"}
    )
    to.ask("PUT", path, {**now, "metadata": {**now["metadata"], "name": "x"}})
    to.ask("PUT", f"{PLAN}/nope", plan("nope"))
    finalizers: list[Object] = [{"metadata": {"finalizers": ["a.b/c"]}}, {"metadata": {"finalizers": None}}]
    to.ask("PATCH", path, finalizers[0], MERGE_PATCH, query={"fieldManager": "ed"})
    to.ask("DELETE", path)
    to.ask("DELETE", path)
    to.ask("PATCH", path, {"spec": {"mode": "DryRun"}}, MERGE_PATCH, query={"fieldManager": "ed"})
    to.ask("PATCH", path, finalizers[1], MERGE_PATCH, query={"fieldManager": "ed"})
    to.ask("GET", path)
    to.ask("DELETE", f"{PLAN}/a", {"preconditions": {"uid": "x"}})
    to.ask("DELETE", f"{PLAN}/a")
    to.ask("DELETE", f"{PLAN}/a")
