"""kubelet's PodResources answers, from protobuf's wire format to the document that `agent.node.kubelet` reads.

The messages, as of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto; what else they hold is skipped:

    ListPodResourcesResponse  1 pod_resources: PodResources…
    PodResources              1 name, 2 namespace, 3 containers: ContainerResources…
    ContainerResources        1 name, 2 devices: ContainerDevices…, 3 cpu_ids: int64…
    ContainerDevices          1 resource_name, 2 device_ids: string…

Nobody publishes stubs of these, and generated ones would bring the protobuf runtime along for four messages. The bytes
come from another process: whatever they hold, it takes bounded time and memory, and `WireError` is all that is raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

MAX_FIELDS: Final = 1 << 19
"""In one answer, at all levels. A node of 110 pods with 64 devices has about a thousand."""
MAX_CPU_IDS: Final = 1 << 20
"""In one answer: 1,024 for each of a thousand containers, as old kubelets report the shared pool."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BYTES: Final = 10
_MASK64: Final = (1 << 64) - 1

Document = dict[str, Any]


class WireError(ValueError):
    """Bytes that are no such message. Its text is one line."""


def decode_pod_resources(data: bytes) -> Document:
    """A ListPodResourcesResponse as `agent.node.kubelet.parse_pod_resources` reads it. Raises WireError."""
    return _Reader().answer(memoryview(data))


class _Reader:
    """Decodes one answer, counting what it has come across.

    A field of another type than expected counts as unknown, of a single one that is there several times the last
    counts: both are protobuf's rules.
    """

    def __init__(self) -> None:
        self._fields_left = MAX_FIELDS
        self._cpu_ids_left = MAX_CPU_IDS

    def answer(self, data: memoryview) -> Document:
        return {"pod_resources": [self._pod(value) for number, value in self._bytes_fields(data) if number == 1]}

    def _pod(self, data: memoryview) -> Document:
        pod: Document = {"containers": []}
        for number, value in self._bytes_fields(data):
            if number == 1:
                pod["name"] = _text(value)
            elif number == 2:
                pod["namespace"] = _text(value)
            elif number == 3:
                pod["containers"].append(self._container(value))
        return pod

    def _container(self, data: memoryview) -> Document:
        container: Document = {"devices": [], "cpu_ids": []}
        for number, value in self._fields(data):
            if number == 3:
                container["cpu_ids"] += self._int64s(value)
            elif isinstance(value, int):
                continue
            elif number == 1:
                container["name"] = _text(value)
            elif number == 2:
                container["devices"].append(self._device(value))
        return container

    def _device(self, data: memoryview) -> Document:
        device: Document = {"device_ids": []}
        for number, value in self._bytes_fields(data):
            if number == 1:
                device["resource_name"] = _text(value)
            elif number == 2:
                device["device_ids"].append(_text(value))
        return device

    def _int64s(self, value: int | memoryview) -> list[int]:
        """One occurrence of a repeated int64: a number of its own, or packed. Readers have to expect both, mixed."""
        numbers = [value] if isinstance(value, int) else _packed(value, self._cpu_ids_left)
        self._cpu_ids_left -= len(numbers)
        if self._cpu_ids_left < 0:
            raise WireError(f"more than {MAX_CPU_IDS} CPU ids")
        return [number - (1 << 64) if number >> 63 else number for number in numbers]

    def _bytes_fields(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        return ((number, value) for number, value in self._fields(data) if not isinstance(value, int))

    def _fields(self, data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
        """Number and value of each field of a message: an unsigned number for a varint, else the bytes.

        Fields of a fixed size are skipped. Groups, which proto3 does not have, are refused as no wire type is.
        """
        at, end = 0, len(data)
        while at < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise WireError(f"more than {MAX_FIELDS} fields")
            tag, at = _varint(data, at)
            number, kind = tag >> 3, tag & 7
            if not 0 < number < 1 << 29:
                raise WireError(f"{number} is no field number")
            if kind == _VARINT:
                value, at = _varint(data, at)
                yield number, value
                continue
            if kind == _BYTES:
                size, at = _varint(data, at)
            elif kind in _FIXED_SIZES:
                size = _FIXED_SIZES[kind]
            else:
                raise WireError(f"{kind} is no wire type")
            if size > end - at:
                raise WireError(f"field {number} ends early: {end - at} of {size} bytes")
            if kind == _BYTES:
                yield number, data[at : at + size]
            at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """An unsigned number of 64 bits, and where it ends."""
    if at < len(data) and data[at] < 0x80:  # as most are
        return data[at], at + 1
    value = 0
    for k, byte in enumerate(data[at : at + _VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * k
        if byte < 0x80:
            return value & _MASK64, at + k + 1
    raise WireError("a number does not end")


def _packed(data: memoryview, most: int) -> list[int]:
    """Numbers behind each other; a few more than `most` at the most."""
    if data and max(data) < 0x80:
        return list(data[: most + 1])
    found: list[int] = []
    at = 0
    while at < len(data) and len(found) <= most:
        value, at = _varint(data, at)
        found.append(value)
    return found


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise WireError("a name is not UTF-8") from None
