"""What a command that only looks knows of the cluster: `kubectl exec ds/cpubind -- cpubind …`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.control.observe import Chooser
from agent.model.pods import pod_from_manifest
from agent.model.reason import Problem, Refused
from agent.model.workload import Pod, PodResources
from agent.node.kubelet import read_cpu_manager_state
from agent.settings import Settings

FIRST_ANSWER_SECONDS = 2.0
"""How long kubelet's answer is waited for."""


@dataclass(frozen=True, slots=True)
class View:
    """The node's pods and plan, read once."""

    pods: tuple[Pod, ...]
    chooses: Chooser
    spec: Mapping[str, Any] | None
    """`spec` of the plan, {} where that says nothing; None without a plan, and where it could not be read."""
    resources: tuple[PodResources, ...] = ()
    """What kubelet's pod-resources socket lists, where the agent asks it."""
    problems: tuple[Problem, ...] = ()
    """Why something could not be read. Without pods nobody is known to have opted in."""
    status: Mapping[str, Any] = field(default_factory=dict)
    """`status` of the plan, as the agent wrote it last."""


def cluster_view(settings: Settings) -> View | None:
    """As the agent beside us sees it; None outside of a pod that has a service account."""
    if not os.environ.get("KUBERNETES_SERVICE_HOST") or not (settings.service_account_dir / "token").exists():
        return None
    from agent.kube.access import Access  # noqa: PLC0415 - the client takes a second to import
    from agent.kube.api import Api, ApiError  # noqa: PLC0415
    from agent.kube.pods import PodSelection, PodStore  # noqa: PLC0415

    resources, unheard = pod_resources(settings.host_root)
    problems = (unheard,) if unheard else ()
    store = PodStore(lambda: None)
    selection = PodSelection(store, settings.pod_selection, settings.namespaces, settings.exclude_namespaces)
    try:
        api = Api(Access.in_cluster(settings.service_account_dir))
        manifests = api.pods(settings.node_name)
        plans = list(api.plans(settings.node_name))
    except (ApiError, Refused) as error:
        return View((), selection.choose, None, resources, (error.problem, *problems))
    store.replace(manifests)
    spec = plans[0].get("spec", {}) if plans else None
    status = plans[0].get("status") if plans else None
    pods = tuple(map(pod_from_manifest, manifests))
    return View(pods, selection.choose, spec, resources, problems, status if isinstance(status, Mapping) else {})


def pod_resources(root: Path) -> tuple[tuple[PodResources, ...], Problem | None]:
    """What kubelet lists, asked once and where the agent asks it: not where its CPU manager gives no CPUs away."""
    from agent.kube.pod_resources import SOCKET, PodResourcesPoll  # noqa: PLC0415 - grpc takes its time to import

    with contextlib.suppress(Refused):  # told where the state file is read for what is in it
        if read_cpu_manager_state(root)[0] == "none":
            return (), None
    poll = PodResourcesPoll(root / SOCKET, lambda: None)
    try:
        poll.wait_first(FIRST_ANSWER_SECONDS)
        return poll.current()
    finally:
        poll.stop()
