"""PodResources answers as bytes: those of a kubelet, and whatever else may come through a socket."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.kube import wire
from agent.kube.pod_resources import parse_answer
from agent.kube.wire import WireError, decode_pod_resources
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.reason import Reason, Refused
from agent.model.workload import PodResources
from tests.kube.podresources_server import block, container, device, packed, pod, tag, unpacked, varint

NODE = pod(
    "prod",
    "llm-0",
    container("vllm", device("huawei.com/Ascend910", "Ascend910-3", "Ascend910-4"), packed(3, 1, 2, 300)),
    container("side"),
) + pod("kube-system", "proxy", container("proxy", device("nvidia.com/gpu", "GPU-1")))

READ = (
    PodResources("kube-system", "proxy", "proxy", EMPTY),
    PodResources("prod", "llm-0", "side", EMPTY),
    PodResources("prod", "llm-0", "vllm", CpuSet({1, 2, 300}), ("Ascend910-3", "Ascend910-4")),
)


def _one(*content: bytes) -> PodResources:
    """The only container of an answer, with this content."""
    (only,) = parse_answer(pod("prod", "llm-0", container("vllm", *content)))
    return only


def test_containers_are_read_with_their_cpus_and_devices() -> None:
    assert parse_answer(NODE) == READ


def test_bytes_that_the_protobuf_library_made_are_read() -> None:
    """With topology and memory, so that encoder and decoder of ours can't agree on a mistake."""
    made = bytes.fromhex(
        "0a7c0a056c6c6d2d30120470726f641a650a04766c6c6d12360a146875617765692e636f6d2f417363656e6439313012"
        "0b417363656e643931302d33120b417363656e643931302d341a040a0208011a0602038201ff04221d0a0d6875676570"
        "616765732d324d691080808080041a060a000a0208011a060a0473696465"
    )
    assert parse_answer(made) == (
        PodResources("prod", "llm-0", "side", EMPTY),
        PodResources("prod", "llm-0", "vllm", CpuSet({2, 3, 130, 639}), ("Ascend910-3", "Ascend910-4")),
    )


def test_bytes_that_a_kubelet_made_are_read() -> None:
    """Of v1.20.2 with the static CPU manager on two CPUs, which reports the shared pool for shared containers, too."""
    made = bytes.fromhex("0a200a057368656c6c120b63707562696e642d6532651a0a0a046d61696e1a020001")
    assert parse_answer(made) == (PodResources("cpubind-e2e", "shell", "main", CpuSet({0, 1})),)


def test_no_bytes_are_no_pods() -> None:
    assert parse_answer(b"") == ()


def test_the_order_in_which_kubelet_lists_things_makes_no_difference() -> None:
    devices = [device("huawei.com/Ascend910", f"Ascend910-{k}") for k in range(4)]
    pods = [pod("prod", f"llm-{k}", container("b", *devices), container("a", packed(3, 3, 2, 1))) for k in range(4)]
    answers = set()
    for seed in range(5):
        shuffled = random.Random(seed)
        shuffled.shuffle(pods)
        shuffled.shuffle(devices)
        answers.add(parse_answer(b"".join(pods)))
    assert len(answers) == 1


def test_devices_of_other_resources_are_left_out_wherever_their_name_stands() -> None:
    backwards = block(2, block(2, "GPU-1") + block(1, "nvidia.com/gpu"))
    ours = block(2, block(2, "Ascend910-3") + block(1, "huawei.com/Ascend910"))
    assert _one(backwards, ours, device("nvidia.com/gpu", "GPU-2")).devices == ("Ascend910-3",)


@pytest.mark.parametrize(
    "cpu_ids",
    [
        packed(3, 0, 127, 128, 639),
        unpacked(3, 0, 127, 128, 639),
        packed(3, 0) + unpacked(3, 127) + packed(3, 128, 639),
        packed(3) + packed(3, 0, 127, 128, 639) + packed(3),
        block(3, b"\x00\xff\x00\x80\x81\x80\x00\xff\x84\x00"),  # numbers with more bytes than they need
    ],
)
def test_cpu_ids_are_read_packed_one_by_one_and_mixed(cpu_ids: bytes) -> None:
    assert _one(cpu_ids).cpus == CpuSet({0, 127, 128, 639})


def test_several_ids_of_one_device_and_several_devices_read_the_same() -> None:
    several = _one(device("huawei.com/Ascend910", "Ascend910-0", "Ascend910-1"))
    assert several == _one(*(device("huawei.com/Ascend910", f"Ascend910-{k}") for k in (0, 1)))
    assert several.devices == ("Ascend910-0", "Ascend910-1")


def test_topology_memory_dynamic_resources_and_what_later_kubelets_add_are_skipped() -> None:
    topology = block(3, block(1, unpacked(1, 0)))
    memory = block(4, block(1, "memory") + unpacked(2, 1 << 40) + topology)
    claims = block(5, block(1, "class") + block(2, "claim") + block(3, "prod"))
    later = unpacked(99, -1) + tag(98, 1) + b"12345678" + tag(97, 5) + b"1234" + block(536870911, b"\xff\xff")
    with_topology = block(2, block(1, "huawei.com/Ascend910") + block(2, "Ascend910-3") + topology + later)
    one = _one(memory, with_topology, claims, later, packed(3, 7))
    assert (one.cpus, one.devices) == (CpuSet({7}), ("Ascend910-3",))
    assert parse_answer(later + NODE + later) == READ


def test_a_field_of_another_type_counts_as_unknown() -> None:
    one = _one(unpacked(1, 5), unpacked(2, 5), tag(3, 5) + b"1234", packed(3, 1))
    assert one == PodResources("prod", "llm-0", "vllm", CpuSet({1}))


def test_of_a_name_that_is_there_twice_the_last_one_counts() -> None:
    assert _one(block(1, "first"), block(1, "last")).container == "last"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x0a", "a number does not end"),
        (b"\x0a\x05ab", "field 1 ends early: 2 of 5 bytes"),
        (b"\x0a" + varint((1 << 64) - 1), "ends early: 0 of 18446744073709551615 bytes"),
        (tag(9, 1) + b"1234567", "field 9 ends early: 7 of 8 bytes"),
        (tag(9, 5) + b"123", "field 9 ends early: 3 of 4 bytes"),
        (b"\x80" * 11, "a number does not end"),
        (b"\x02\x00", "0 is no field number"),
        (varint(1 << 32 | 2) + b"\x00", "536870912 is no field number"),
        *((tag(9, kind), f"{kind} is no wire type") for kind in (3, 4, 6, 7)),
        (block(1, b"\x0a\x02\xff\xfe"), "a name is not UTF-8"),
        (pod("a", "b", container("c", block(3, b"\x80"))), "a number does not end"),
        (pod("a", "b", container("c", block(3, b"\x81" * 10 + b"\x01"))), "a number does not end"),
        (pod("a", "b", container("c", packed(3, -1))), "-1"),
        (pod("a", "b", container("c", packed(3, 4096))), "4096"),
        (pod("a", "b", container("c", unpacked(3, 1 << 63))), "-9223372036854775808"),
    ],
)
def test_damaged_answers_are_refused_with_what_is_wrong(data: bytes, said: str) -> None:
    with pytest.raises(Refused, match=said) as refused:
        parse_answer(data)
    assert refused.value.reason is Reason.KUBELET_STATE_UNREADABLE


def test_an_answer_cut_at_any_byte_is_refused_or_lacks_its_last_pods() -> None:
    for end in range(len(NODE)):
        with contextlib.suppress(Refused):
            assert parse_answer(NODE[:end]) in ((), READ[1:]), f"cut at {end}"


@given(st.binary(max_size=200))
@example(b"\x0a" * 200)
@example(b"\x1a\x02\x80\x80" * 20)
def test_whatever_the_bytes_nothing_but_refused_is_raised(data: bytes) -> None:
    for wrapped in (data, block(1, data), block(1, block(3, data)), block(1, block(3, block(2, data)))):
        with contextlib.suppress(Refused):
            parse_answer(wrapped)


@given(st.data())
def test_a_damaged_byte_gives_another_answer_or_refused(data: st.DataObject) -> None:
    damaged = bytearray(NODE)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(NODE) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Refused):
        parse_answer(bytes(damaged))


_names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
_ids = st.lists(_names, max_size=4, unique=True).map(lambda ids: tuple(sorted(ids)))
_containers = st.builds(
    PodResources,
    namespace=_names,
    pod=_names,
    container=_names,
    cpus=st.sets(st.integers(0, 4095)).map(CpuSet),
    devices=_ids,
)


@given(st.lists(_containers, max_size=4))
def test_every_answer_that_can_be_written_is_read_as_it_was_meant(resources: list[PodResources]) -> None:
    answer = b"".join(
        pod(
            one.namespace,
            one.pod,
            container(one.container, packed(3, *one.cpus), device("huawei.com/Ascend910", *one.devices)),
        )
        for one in resources
    )
    read = parse_answer(answer)
    assert sorted(map(repr, read)) == sorted(map(repr, resources))


def test_more_fields_or_cpus_than_any_node_has_are_refused_before_they_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "MAX_FIELDS", 100)
    monkeypatch.setattr(wire, "MAX_CPU_BYTES", 75)
    assert decode_pod_resources(block(1, b"") * 100) == []
    for many in (block(1, b"") * 101, block(9, b"") * 101, block(1, block(3, block(3, b"") * 99))):
        with pytest.raises(WireError, match="more than 100 fields"):
            decode_pod_resources(many)
    with_ids = [packed(3, *[1] * 25), packed(3, *[200] * 25)]
    assert decode_pod_resources(pod("a", "b", container("c", *with_ids)))
    for more in (packed(3, 1), packed(3, 200), packed(3, *[1] * 10_000), unpacked(3, 1)):
        for two in (container("c", *with_ids, more), container("c", *with_ids) + container("d", more)):
            with pytest.raises(WireError, match="more than 75 bytes of CPU ids"):
                decode_pod_resources(pod("a", "b", two))
