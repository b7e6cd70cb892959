"""The small API server answers as the real one does, to the letter."""

from __future__ import annotations

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.fake_apiserver import FakeApiServer
from tests.cluster.real_apiserver import RealApiServer
from tests.cluster.script import Answer, Script
from tests.cluster.script_core import events, nodes, pod_changes, pod_ends, pods, rights, who
from tests.cluster.script_plans import applies, edits, owners, plans, refused_applies

PARTS = (who, plans, refused_applies, applies, owners, edits, pods, pod_changes, pod_ends, nodes, events, rights)


def answers(cluster: Cluster) -> list[tuple[str, Answer]]:
    script = Script(cluster)
    for part in PARTS:
        part(script)
    script.close()
    return script.told


@pytest.mark.api
def test_both_servers_give_the_same_answers_to_everything(
    fake_cluster: FakeApiServer, real_cluster: RealApiServer
) -> None:
    fake, real = answers(fake_cluster), answers(real_cluster)
    assert [question for question, _ in fake] == [question for question, _ in real]
    different = [
        f"{question}\n  real: {theirs}\n  fake: {ours}"
        for (question, theirs), (_, ours) in zip(real, fake, strict=True)
        if theirs != ours
    ]
    assert not different, "\n".join(different)


def test_the_script_finds_no_fault_in_the_small_server_itself(fake_cluster: FakeApiServer) -> None:
    assert not [question for question, (code, _) in answers(fake_cluster) if code == 501], "not modelled"
