"""npu-smi's errors are told apart by what it prints, whatever its exit status."""

from __future__ import annotations

import pytest

from agent.model.reason import Reason
from agent.node.npu_smi.recognise import recognise
from tests.node.npu_smi.samples import device, fixture, info_text, names, process

FIXTURES = {
    "dcmi_8005": Reason.DRIVER_NOT_READY,
    "dcmi_8005_with_drvmng_prefix": Reason.DRIVER_NOT_READY,
    "command_not_found": Reason.NPU_SMI_NOT_FOUND,
    "libc_sec_missing": Reason.NPU_SMI_LIBRARY_MISSING,
    "error_parameter_of_t": Reason.NOT_SUPPORTED,
}


def test_every_fixture_is_in_the_table() -> None:
    assert sorted(FIXTURES) == names("errors")


@pytest.mark.parametrize(("name", "reason"), FIXTURES.items())
@pytest.mark.parametrize("status", [0, 1, 127, 255])
def test_a_published_error_has_its_reason_whatever_the_status(name: str, reason: Reason, status: int) -> None:
    problem = recognise(fixture("errors", name), status)
    assert problem is not None
    assert problem.reason is reason


@pytest.mark.parametrize(
    ("output", "status", "reason", "message"),
    [
        (
            "dcmi model initialized failed, because the device is used. ret is -8020\n",
            0,
            Reason.DRIVER_BUSY,
            "dcmi model initialized failed, because the device is used. ret is -8020",
        ),
        ("dcmi module initialize failed. ret is -8020\n", 236, Reason.DRIVER_BUSY, None),
        ("dcmi module initialize failed. ret is -8008\n", 0, Reason.NPU_SMI_FAILED, None),
        ("Failed to execute npu-smi info. ret is -8255.\n", 1, Reason.NOT_SUPPORTED, None),
        ("Failed to execute npu-smi info. ret is -8001.\n", 0, Reason.NPU_SMI_FAILED, None),
        ("This device does not support querying topo.\n", 0, Reason.NOT_SUPPORTED, None),
        ("This device dose not support querying hccs topo.\n", 0, Reason.NOT_SUPPORTED, None),
        ("Command or option is not found.\nUsage: npu-smi\n", 0, Reason.NOT_SUPPORTED, None),
        ("\tThere is no NPU card on this server.\n", 0, Reason.NO_NPUS, None),
        ("sh: 1: npu-smi: not found\n", 127, Reason.NPU_SMI_NOT_FOUND, None),
        ("env: npu-smi: No such file or directory\n", 127, Reason.NPU_SMI_NOT_FOUND, None),
        ("", 127, Reason.NPU_SMI_NOT_FOUND, "exit status 127"),
        ("", 126, Reason.NPU_SMI_NOT_FOUND, "exit status 126"),
        ("", 3, Reason.NPU_SMI_FAILED, "exit status 3"),
        ("", -11, Reason.NPU_SMI_FAILED, "ended by signal 11"),
        ("\n+---+\n\n\x1b[31mboom\x1b[0m\nmore\n", 3, Reason.NPU_SMI_FAILED, "exit status 3: \\x1b[31mboom\\x1b[0m"),
    ],
)
def test_an_error_is_recognised(output: str, status: int, reason: Reason, message: str | None) -> None:
    problem = recognise(output, status)
    assert problem is not None
    assert problem.reason is reason
    assert message is None or problem.message == message


@pytest.mark.parametrize("kind", ["info", "map", "topo", "board"])
def test_no_published_table_is_taken_for_an_error(kind: str) -> None:
    for name in names(kind):
        if not name.startswith("err_"):
            assert recognise(fixture(kind, name), 0) is None, name


@pytest.mark.parametrize(
    "name",
    [
        "There is no NPU card on this server.",
        "dcmi module initialize failed. ret is -8005",
        "error while loading shared libraries",
    ],
)
def test_the_name_of_a_process_is_never_taken_for_an_error(name: str) -> None:
    assert recognise(info_text([device(0, 0)], [process(0, 7, 100, name)]), 0) is None


def test_a_message_is_short_and_printable_whatever_was_printed() -> None:
    for output in ("工" * 5000, "\x00\x07" * 3000 + "x", "dcmi module initialize failed. ret is -8005" + "工" * 500):
        problem = recognise(output, 1)
        assert problem is not None
        assert problem.message.isprintable()
        assert len(problem.message.encode()) <= 256
