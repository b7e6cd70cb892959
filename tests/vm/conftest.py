"""One guest for each topology, booted when its first test comes. One after the other: two cores emulate 32."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.vm.guest import BuildError, GuestError, Report, boot, furnish, missing

SCENARIOS = {
    "n4c32": [
        "nodes.a2",
        "nodes.a3",
        "ascend950.one_thread",
    ],
    "n4c16": [
        "memory.far_away",
        "interrupts.moved",
        "interrupts.named_by_proc",
        "interrupts.irqbalance",
        "helpers.confined",
        "crash.twenty_kills",
    ],
    "n2c32smt": ["ascend950.two_threads"],
    "n4mem2": ["memory.memory_only"],
}
"""What runs in a guest of each topology."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a guest one of these tests is skipped, for all of them: the reason is worth one line."""
    own = [item for item in items if Path(__file__).parent in item.path.parents]
    guests = [item for item in own if "told" in getattr(item, "fixturenames", ())]
    for item in guests:
        item.add_marker("vm")
    if guests and (problem := missing()):
        guests[0].add_marker(pytest.mark.skip(f"all {len(guests)} tests of tests/vm: {problem}"))
        items[:] = [item for item in items if item not in guests[1:]]
        config.hook.pytest_deselected(items=guests[1:])


Told = Callable[[str], Report]


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Path]]:
    """What guests run, gathered when the first one is booted: a hundred megabytes."""
    folder = tmp_path_factory.mktemp("guest")
    yield functools.cache(lambda: furnish(folder))
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def told(request: pytest.FixtureRequest, root: Callable[[], Path]) -> Told:
    """The report of the guest of a topology. One that could not boot is tried once more, then skipped, loudly."""
    reports: dict[str, Report | str] = {}

    def get(topology: str) -> Report:
        if topology not in reports:
            capture = request.config.pluginmanager.getplugin("capturemanager")
            with capture.global_and_fixture_disabled():
                reports[topology] = boot_twice(topology, root)
        report = reports[topology]
        if isinstance(report, str):
            pytest.skip(report)
        return report

    return get


def boot_twice(topology: str, root: Callable[[], Path]) -> Report | str:
    """What a guest has told, or why there is none after two tries."""
    for attempt in ("first", "second"):
        try:
            return boot(topology, SCENARIOS[topology], root())
        except (GuestError, BuildError) as error:
            print(f"\nTHE GUEST {topology} FAILED, {attempt} try: {error}", flush=True)
            problem = f"THE GUEST {topology} COULD NOT BE HAD, tried twice: {str(error).splitlines()[0]}"
    return problem
