"""kubelet's PodResources answers, read from protobuf's wire format.

The messages, as of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto; what else they hold is skipped:

    ListPodResourcesResponse  1 pod_resources: PodResources…
    PodResources              1 name, 2 namespace, 3 containers: ContainerResources…
    ContainerResources        1 name, 2 devices: ContainerDevices…, 3 cpu_ids: int64…
    ContainerDevices          1 resource_name, 2 device_ids: string…

Nobody publishes stubs of these, and generated ones would bring the protobuf runtime along for four messages. The bytes
come from another process: whatever they hold, it takes bounded time and memory, and `WireError` is all that is raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from agent.model.cpuset import CpuSet
from agent.model.workload import PodResources
from agent.node.kubelet import RESOURCES

MAX_FIELDS: Final = 1 << 18
"""In one answer, at all levels. A node of 110 pods with 64 devices has about a thousand."""
MAX_CPU_BYTES: Final = 2 << 20
"""Of CPU ids in one answer: 1,024 ids for each of a thousand containers, as old kubelets report the shared pool."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BYTES: Final = 10
_MASK64: Final = (1 << 64) - 1
_PACKED: Final = re.compile(rb"[\x80-\xff]{0,9}[\x00-\x7f]")


class WireError(ValueError):
    """Bytes that are no such message. Its text is one line."""


def decode_pod_resources(data: bytes) -> list[PodResources]:
    """A ListPodResourcesResponse: every container, and of its devices those of Ascend resources. Raises WireError."""
    return list(_Reader().answer(memoryview(data)))


class _Reader:
    """Decodes one answer, counting what it has come across.

    A field of another type than expected counts as unknown, of a single one that is there several times the last
    counts: both are protobuf's rules. Fields may come in any order.
    """

    def __init__(self) -> None:
        self._fields_left = MAX_FIELDS
        self._cpu_bytes_left = MAX_CPU_BYTES

    def answer(self, data: memoryview) -> Iterator[PodResources]:
        for number, pod in self._bytes_fields(data):
            if number == 1:
                yield from self._pod(pod)

    def _pod(self, data: memoryview) -> Iterator[PodResources]:
        name = namespace = ""
        containers = []
        for number, value in self._bytes_fields(data):
            if number == 1:
                name = _text(value)
            elif number == 2:
                namespace = _text(value)
            elif number == 3:
                containers.append(value)
        return (self._container(value, namespace, name) for value in containers)

    def _container(self, data: memoryview, namespace: str, pod: str) -> PodResources:
        name = ""
        devices: list[str] = []
        cpus: set[bytes] = set()
        for number, value in self._fields(data):
            if number == 3:
                cpus |= self._cpu_ids(value)
            elif isinstance(value, int):
                continue
            elif number == 1:
                name = _text(value)
            elif number == 2:
                devices += self._device_ids(value)
        return PodResources(namespace, pod, name, _cpu_set(frozenset(cpus)), tuple(devices))

    def _device_ids(self, data: memoryview) -> list[str]:
        resource = ""
        ids = []
        for number, value in self._bytes_fields(data):
            if number == 1:
                resource = _text(value)
            elif number == 2:
                ids.append(value)
        return [_text(one) for one in ids] if resource.startswith(RESOURCES) else []

    def _cpu_ids(self, value: int | memoryview) -> set[bytes]:
        """The numbers, each still encoded, of one occurrence of cpu_ids: packed, or one by one. Readers have to expect
        both, and mixed."""
        data = _encoded(value) if isinstance(value, int) else value
        self._cpu_bytes_left -= len(data)
        if self._cpu_bytes_left < 0:
            raise WireError(f"more than {MAX_CPU_BYTES} bytes of CPU ids")
        numbers = _PACKED.findall(data)
        if sum(map(len, numbers)) != len(data):
            raise WireError("a number does not end")
        return set(numbers)

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


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@lru_cache(16)
def _cpu_set(numbers: frozenset[bytes]) -> CpuSet:
    """From encoded numbers. Kubelets before 1.21 report the whole shared pool for every container, in an order that
    changes with each call; this and the splitting by a pattern make that five times as fast."""
    values = (_varint(memoryview(number), 0)[0] for number in numbers)
    try:
        return CpuSet(value - (1 << 64) if value >> 63 else value for value in values)
    except ValueError as error:
        raise WireError(f"cpu_ids: {error}") from None


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise WireError("a name is not UTF-8") from None
