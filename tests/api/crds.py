"""CRDs of other releases."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.cluster import our_crd


def older_crd() -> dict[str, Any]:
    """One that lacks fields of the status, one at each depth, and in spec a field and a word."""
    document = copy.deepcopy(our_crd())
    properties = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    spec, status = properties["spec"]["properties"], properties["status"]["properties"]
    del status["uvb"], status["bases"], status["npus"]["items"]["properties"]["workersOmitted"]
    del spec["helpers"]
    spec["strategy"]["enum"].remove("NumaSlice")
    return document


def crd_of(source: Path) -> dict[str, Any]:
    """That of the release whose source this is."""
    document: dict[str, Any] = yaml.safe_load((source / "crds/cpubindingplans.yaml").read_text())
    return document


def newer_crd() -> dict[str, Any]:
    """One that has more: fields of the status, one at each depth, and in spec a field and a word."""
    document = copy.deepcopy(our_crd())
    properties = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    spec, status = properties["spec"]["properties"], properties["status"]["properties"]
    spec["quiet"] = {"type": "boolean"}
    spec["strategy"]["enum"].append("Random")
    status["weather"] = {"type": "string"}
    status["npus"]["items"]["properties"]["temperature"] = {"type": "integer"}
    return document
