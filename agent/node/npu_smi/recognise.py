"""The error texts of npu-smi, told apart.

npu-smi prints its errors on stdout, and some of them with exit status 0 (npu_smi.c and npu_info_print.c of the public
driver), so that the text decides before the status does.
"""

from __future__ import annotations

import re
from typing import Final

from agent.model.reason import Problem, Reason, Refused
from agent.node.npu_smi.tables import shown

# npu-smi's errors come at once; a table that follows them is not searched any further.
_LINES: Final = 50

# "dcmi module initialize failed. ret is -8005"
# "dcmi model initialized failed, because the device is used. ret is -8020"
_DCMI: Final = re.compile(r"dcmi mod(?:ule|el) initiali[sz]ed? failed.{0,80}ret is (-?[0-9]{1,9})", re.ASCII)
_DCMI_REASONS: Final = {"-8005": Reason.DRIVER_NOT_READY, "-8020": Reason.DRIVER_BUSY}

# "Failed to execute npu-smi info. ret is -8255." -8255 is DCMI_ERR_CODE_NOT_SUPPORT.
_EXECUTE: Final = re.compile(r"Failed to execute npu-smi .{0,80}ret is (-?[0-9]{1,9})", re.ASCII)
_EXECUTE_REASONS: Final = {"-8255": Reason.NOT_SUPPORTED}

_TEXTS: Final = (
    # Before "not found": the loader's message ends in "No such file or directory".
    (re.compile(r"error while loading shared libraries"), Reason.NPU_SMI_LIBRARY_MISSING),
    # Both spellings are in the driver: "does not support querying topo", "dose not support querying hccs topo".
    (re.compile(r"^This device do[es]{2} not support "), Reason.NOT_SUPPORTED),
    (re.compile(r"^Error parameter of "), Reason.NOT_SUPPORTED),
    (re.compile(r"^Command or option is not found"), Reason.NOT_SUPPORTED),
    (re.compile(r"^There is no NPU card on this server"), Reason.NO_NPUS),
    (
        re.compile(r"npu-smi\S{0,2} (?:command )?not found$|^\S{0,80}npu-smi: No such file or directory$"),
        Reason.NPU_SMI_NOT_FOUND,
    ),
)


def recognise(output: str, status: int) -> Problem | None:
    """What went wrong in a run of npu-smi; None where nothing did.

    `output` is what it printed (stdout, and stderr behind it where there is one), `status` its exit status, negative
    for the signal that ended it. Rows of tables are not searched: they hold names that anybody can choose.
    """
    head = output[: 200 * _LINES].split("\n", _LINES)[:_LINES]
    lines = [line.strip() for line in head]
    for line in lines:
        if line.startswith(("|", "+")):
            continue
        if found := _reason(line):
            return Problem(found, shown(line, 120))
    if status == 0:
        return None
    useful = next((line for line in lines if any(map(str.isalnum, line))), "")
    said = f": {shown(useful, 100)}" if useful else ""
    if status in {126, 127}:  # the shell's word for "not executable" and "not found"
        return Problem(Reason.NPU_SMI_NOT_FOUND, f"exit status {status}{said}")
    ended = f"ended by signal {-status}" if status < 0 else f"exit status {status}"
    return Problem(Reason.NPU_SMI_FAILED, ended + said)


def refuse_errors(command: str, output: str, status: int = 0) -> None:
    """Refused with what `recognise` finds in the answer to a `command` such as ``npu-smi info``, which it names."""
    if problem := recognise(output, status):
        raise Refused(problem.reason, f"{command}: {problem.message}")


def _reason(line: str) -> Reason | None:
    if match := _DCMI.search(line):
        return _DCMI_REASONS.get(match[1], Reason.NPU_SMI_FAILED)
    if match := _EXECUTE.search(line):
        return _EXECUTE_REASONS.get(match[1], Reason.NPU_SMI_FAILED)
    return next((reason for text, reason in _TEXTS if text.search(line)), None)
