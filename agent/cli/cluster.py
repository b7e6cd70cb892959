"""What a command that only looks knows of the cluster: `kubectl exec ds/cpubind -- cpubind …`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.control.observe import Chooser
from agent.model.pods import pod_from_manifest
from agent.model.reason import Problem, Refused
from agent.model.workload import Pod
from agent.settings import Settings


@dataclass(frozen=True, slots=True)
class View:
    """The node's pods and plan, read once."""

    pods: tuple[Pod, ...]
    chooses: Chooser
    spec: Mapping[str, Any]
    """`spec` of the plan; {} without one."""
    problem: Problem | None = None
    """Why they could not be read: then nobody is known to have opted in."""


def cluster_view(settings: Settings) -> View | None:
    """As the agent beside us sees it; None outside of a pod that has a service account."""
    if not os.environ.get("KUBERNETES_SERVICE_HOST") or not (settings.service_account_dir / "token").exists():
        return None
    from agent.kube.access import Access  # noqa: PLC0415 - the client takes a second to import
    from agent.kube.api import Api, ApiError  # noqa: PLC0415
    from agent.kube.pods import PodSelection, PodStore  # noqa: PLC0415

    store = PodStore(lambda: None)
    selection = PodSelection(store, settings.pod_selection, settings.namespaces, settings.exclude_namespaces)
    try:
        api = Api(Access.in_cluster(settings.service_account_dir))
        manifests = api.pods(settings.node_name)
        plans = api.plans(settings.node_name)
    except (ApiError, Refused) as error:
        return View((), selection.choose, {}, error.problem)
    store.replace(manifests)
    spec = plans[0].get("spec") if plans else None
    return View(tuple(map(pod_from_manifest, manifests)), selection.choose, spec if isinstance(spec, Mapping) else {})
