"""The custom resource as a file, for hosts without Kubernetes: `status` belongs to the agent, the rest to people."""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import yaml

from agent.control.report import API_VERSION, KIND
from agent.model.reason import Reason, Refused, printable
from agent.node.documents import parse_yaml
from agent.node.files import read_text
from agent.node.storage import irregular, write_atomic

MAX_BYTES = 4 << 20
MAX_VALUES = 200_000
GROUP = API_VERSION.partition("/")[0]


def as_yaml(document: Mapping[str, Any]) -> str:
    """An object as YAML, fields in the order of the reference."""
    text: str = yaml.dump(dict(document), Dumper=_DUMPER, sort_keys=False, width=120, allow_unicode=True)
    return text


class StateFile:
    """A CpuBindingPlan as YAML. People edit `spec`, and labels, annotations or fields of their own; the agent follows.

    The agent rewrites the file whenever `status` changes. All that people wrote is in the new one, too, but for their
    comments and the form of their YAML, which do not survive. A file of another kind is never rewritten.
    """

    def __init__(self, path: Path) -> None:
        """Refused(InvalidSpec) for a path that names no file."""
        if not path.name:
            raise Refused(Reason.INVALID_SPEC, f"state file {printable(repr(str(path)), 60)}: not the name of a file")
        self.path = path
        self.generation = 0
        """Counts the changes of `spec`, as metadata.generation does on an API server."""
        self._text: str | None = None
        self._document: Mapping[str, Any] = {}
        """What the file says, in `_text`."""

    known = True
    open = True
    own = True
    """Nobody is told apart by a file."""

    def read(self) -> dict[str, Any]:
        """The file as an object; empty when there is none. `Refused` with `StateUnreadable` when it is no such file."""
        return self._parsed(self._read())

    def spec(self) -> Mapping[str, Any] | None:
        """`spec` as people wrote it. Parsed again only when the file was changed by somebody else.

        A file that is gone asks for nothing (design section 7, absence never acts): what it said last stays, and
        `write` makes it anew. None when there has been none.
        `Refused` with `StateUnreadable` as for `read`, and with `InvalidSpec` when the file is well but its spec is not
        a mapping; then `write` keeps what stands there.
        """
        text = self._read()
        if text is None and self.generation:
            self._text = None
        elif text != self._text or self.generation == 0:
            document = self._parsed(text)
            if self.generation == 0 or not _same(document.get("spec"), self._document.get("spec")):
                self.generation += 1
            self._text, self._document = text, document
        spec = self._document.get("spec")
        if spec is None:
            return None if self._text is None else {}
        if not isinstance(spec, Mapping):
            raise Refused(Reason.INVALID_SPEC, f"spec: {_shown(spec)} is not a mapping")
        return spec

    def write(self, document: Mapping[str, Any]) -> bool:
        """Writes the object, with what people have in the file beside it, unless the file says the same already.

        `spec` stays as it was read. Somebody who saved the file since `spec` read it is not overwritten: the next pass
        takes that in. OSError as `Refused` with `StateNotWritten`.
        """
        if self._read() != self._text:
            return False
        document = self._merged(document)
        if self._text is not None and _same(document, self._document):
            self._document = document  # what is the same object next time need not be compared
            return False
        try:
            text = as_yaml(document)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path, text, new=self._text is None)
        except OSError as error:
            raise Refused(Reason.STATE_NOT_WRITTEN, f"{self._name}: {error.strerror}") from error
        except ValueError:
            raise Refused(Reason.STATE_NOT_WRITTEN, f"{self._name}: text in it cannot be encoded") from None
        self._text, self._document = text, document
        return True

    def _merged(self, document: Mapping[str, Any]) -> dict[str, Any]:
        found = self._document
        merged = dict(document)
        if found.get("spec") is not None:
            merged["spec"] = found["spec"]
        metadata = found.get("metadata")
        if isinstance(metadata, Mapping):
            merged["metadata"] = {**document.get("metadata", {}), **_without(metadata, {"name"})}
        return merged | _without(found, {"apiVersion", "kind", "metadata", "spec", "status"})

    def _read(self) -> str | None:
        if (kind := irregular(self.path, follow=True)) is not None:
            raise Refused(Reason.STATE_UNREADABLE, f"{self._name} is {kind}, not a regular file")
        return read_text(self.path, Reason.STATE_UNREADABLE, limit=MAX_BYTES, sized=True)

    def _parsed(self, text: str | None) -> dict[str, Any]:
        document = parse_yaml(text or "", self._name, Reason.STATE_UNREADABLE)
        if document is None:  # nothing but comments, or nothing
            return {}
        if not isinstance(document, dict):
            raise self._foreign(f"{_shown(document)} is not a mapping")
        if not _is_small(document):
            raise self._foreign(f"aliases make more than {MAX_VALUES} values of it")
        kind, version = document.get("kind"), document.get("apiVersion")
        if kind is not None and kind != KIND:
            raise self._foreign(f"kind {_shown(kind)} is not {KIND}")
        if version is not None and not (isinstance(version, str) and version.startswith(f"{GROUP}/")):
            raise self._foreign(f"apiVersion {_shown(version)} is not of {GROUP}")
        return document

    def _foreign(self, why: str) -> Refused:
        return Refused(Reason.STATE_UNREADABLE, f"{self._name}: {why}; it is left alone")

    @property
    def _name(self) -> str:
        return printable(str(self.path), 120)


def _without(mapping: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name not in names}


def _same(one: object, other: object) -> bool:
    """Whether they mean the same in YAML, where 1 is not true, as it is to Python."""
    if one is other:
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _shown(value: object) -> str:
    """A value for a message. Aliases can make a list of lists that has no end when written out."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    return printable(repr(value), 40)


def _is_small(document: object) -> bool:
    """Whether it has a bounded number of values, those that are aliases counted as often as they are used."""
    waiting, count = [document], 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list | tuple | set):
            count += len(value)
            if count > MAX_VALUES:
                return False
            waiting.extend(value.values() if isinstance(value, dict) else value)
    return True


# libyaml is ten times faster, where PyYAML was built with it.
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
