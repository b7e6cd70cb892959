"""The custom resource as a file, for hosts without Kubernetes: `spec` belongs to people, `status` to the agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from agent.model.reason import Reason, Refused, printable
from agent.node.files import read_text
from agent.node.storage import write_atomic

MAX_BYTES = 4 << 20


def as_yaml(document: Mapping[str, Any]) -> str:
    """An object as YAML, fields in the order of the reference."""
    text: str = yaml.dump(dict(document), Dumper=_DUMPER, sort_keys=False, width=120, allow_unicode=True)
    return text


class StateFile:
    """A CpuBindingPlan as YAML. People edit `spec`; the agent follows and rewrites only `status`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0
        """Counts the changes of `spec`, as metadata.generation does on an API server."""
        self._text: str | None = None
        self._spec: Mapping[str, Any] = {}
        self._document: Mapping[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """The file as an object; empty when there is none. `Refused` with `StateUnreadable` when it is no such file."""
        text = read_text(self.path, Reason.STATE_UNREADABLE, limit=MAX_BYTES)
        if not text:
            return {}
        try:
            document = yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader either way
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            where = getattr(error, "problem_mark", None)
            line = f" line {where.line + 1}" if where else ""
            raise Refused(Reason.STATE_UNREADABLE, f"{self.path}{line}: not YAML") from None
        if not isinstance(document, dict):
            raise Refused(Reason.STATE_UNREADABLE, f"{self.path}: {printable(repr(document), 40)} is not a mapping")
        return document

    def spec(self) -> Mapping[str, Any]:
        """`spec` as people wrote it. Parsed again only when the file was changed by somebody else."""
        text = read_text(self.path, Reason.STATE_UNREADABLE, limit=MAX_BYTES)
        if text != self._text or self.generation == 0:
            spec = self.read().get("spec")
            spec = {} if spec is None else spec
            if not isinstance(spec, Mapping):
                raise Refused(Reason.INVALID_SPEC, f"spec: {printable(repr(spec), 40)} is not a mapping")
            if spec != self._spec or self.generation == 0:
                self._spec = spec
                self.generation += 1
            self._text = text
        return self._spec

    def write(self, document: Mapping[str, Any]) -> bool:
        """Writes the object unless the file says the same already. Somebody who saved the file since `spec` read it
        is not overwritten: the next pass takes that in. OSError as `Refused` with `StateNotWritten`."""
        if self._edited() or (document == self._document and self._text is not None):
            return False
        text = as_yaml(document)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path, text)
        except OSError as error:
            raise Refused(Reason.STATE_NOT_WRITTEN, f"{self.path}: {error.strerror}") from error
        self._text, self._document = text, dict(document)
        return True

    def _edited(self) -> bool:
        return read_text(self.path, Reason.STATE_UNREADABLE, limit=MAX_BYTES) != self._text


# libyaml is ten times faster, where PyYAML was built with it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
