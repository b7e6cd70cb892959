"""What an agent on a virtual node exports, as a scraper reads it."""

from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agent.control.exposed import Exposed
from agent.telemetry.metrics import Metrics
from tests.control.rig import Rig

Series = tuple[str, ...]


class Scraper:
    """Asks the agent of a rig; `later` lets so much time pass that the host is read anew."""

    def __init__(self, rig: Rig) -> None:
        self._now = 0.0
        self.exposed = Exposed(rig.agent, clock=lambda: self._now)
        self.metrics = Metrics(self.exposed.document, self.exposed.figures)

    def later(self, seconds: float = 60.0) -> Scraper:
        self._now += seconds
        return self

    def text(self) -> str:
        return generate_latest(self.metrics.registry).decode()

    def all(self) -> dict[Series, float]:
        """(name, value of a label, of the next, …) -> value; labels in alphabetical order."""
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.text())
            for sample in family.samples
        }

    def of(self, name: str) -> dict[Series, float]:
        """The series of one metric that are not 0."""
        return {series[1:]: value for series, value in self.all().items() if series[0] == f"cpubind_{name}" and value}

    def value(self, name: str) -> float:
        """The one series of a metric."""
        return self.all()[f"cpubind_{name}",]
