"""Each request of the agent's with each fault: nothing bound is unbound, nothing wrong is bound, it is said in a line,
the API server is not asked in a hot loop, and all is well again when the fault goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cluster.fake_apiserver import FakeApiServer
from tests.faults.api_rows import AGENT_ROWS, ApiRow
from tests.faults.api_scene import BOOKMARK_SECONDS, ApiScene


@dataclass
class Stage:
    """Keeps one scene for as long as it survives."""

    folder: Path
    scene: ApiScene | None = None
    servers: list[FakeApiServer] = field(default_factory=list)

    def set(self) -> ApiScene:
        if self.scene is None:
            server = FakeApiServer()
            server.bookmark_interval = BOOKMARK_SECONDS
            self.servers.append(server)
            self.scene = ApiScene(server, self.folder / str(len(self.servers)))
        return self.scene

    def endure(self, row: ApiRow) -> None:
        try:
            self.set().endure(row)
        except BaseException:
            self.strike()
            raise

    def strike(self) -> None:
        if self.scene is not None:
            scene, self.scene = self.scene, None
            scene.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("stage"))
    yield stage
    stage.strike()
    for server in stage.servers:
        server.close()


@pytest.mark.parametrize("row", AGENT_ROWS, ids=[row.key for row in AGENT_ROWS])
def test_a_request_that_fails_costs_nobody_a_cpu(stage: Stage, row: ApiRow) -> None:
    stage.endure(row)
