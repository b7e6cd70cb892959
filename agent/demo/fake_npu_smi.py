"""A stand-in for npu-smi: an object for tests, and a program below a virtual node for everything that runs one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agent.demo import npu_smi_tables
from agent.demo.fake_files import put, put_executable
from agent.demo.profiles import Profile
from agent.model.node import ProcessRow
from agent.model.reason import Reason, Refused
from agent.node.npu_smi.recognise import refuse_errors

DRIVER_NOT_READY = "dcmi module initialize failed. ret is -8005\n"
"""What npu-smi prints when the driver is not loaded."""

UNKNOWN_QUERY = "Error parameter of -t\n"

_SCRIPT = """\
#!/bin/sh
# A stand-in for npu-smi: it prints what was rendered beforehand for its arguments.
dir=${0%/*}/../../../var/lib/fake-npu-smi
[ -e "$dir/hang" ] && exec sleep 3600
if [ -e "$dir/fail.rc" ]; then
    cat "$dir/fail.txt"
    read -r status < "$dir/fail.rc"
    exit "$status"
fi
name=
for arg; do name=$name-${arg#-}; done
if [ ! -f "$dir/${name#-}.txt" ]; then
    echo "Error parameter of -t"
    exit 1
fi
exec cat "$dir/${name#-}.txt"
"""


class NpuSmiStandIn:
    """Prints the tables of a profile, and the processes it was told of.

    `query` answers in this process; the program at `path` answers the same to whoever runs it.
    """

    def __init__(self, root: Path, profile: Profile) -> None:
        self.path = root / "usr/local/bin/npu-smi"
        self.calls: list[tuple[str, ...]] = []
        """What `query` was asked. The program keeps no record."""
        self._profile = profile
        self._folder = root / "var/lib/fake-npu-smi"
        self._rows: tuple[ProcessRow, ...] = ()
        self._failure: tuple[str, int] | None = None
        self._hangs = False
        self._folder.mkdir(parents=True, exist_ok=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        put_executable(self.path, _SCRIPT)
        for args in npu_smi_tables.queries(profile):
            self._render(args)

    @property
    def rows(self) -> tuple[ProcessRow, ...]:
        return self._rows

    def set_rows(self, rows: Iterable[ProcessRow]) -> None:
        """Which processes hold contexts from now on."""
        self._rows = tuple(rows)
        self._render(("info",))

    def fail(self, output: str = DRIVER_NOT_READY, status: int = 255) -> None:
        """Every query prints this and ends with that status, until `recover`."""
        self._failure = output, status
        put(self._folder / "fail.txt", output)
        put(self._folder / "fail.rc", f"{status}\n")

    def hang(self) -> None:
        """Queries do not end, until `recover`; those under way then go on hanging."""
        self._hangs = True
        put(self._folder / "hang", "")

    def recover(self) -> None:
        """Answers again."""
        self._failure, self._hangs = None, False
        for name in ("hang", "fail.rc", "fail.txt"):
            (self._folder / name).unlink(missing_ok=True)

    def query(self, *args: str) -> str:
        """What ``npu-smi ARGS`` prints; Refused where it fails or, at once, where it would hang."""
        self.calls.append(args)
        if self._hangs:
            raise Refused(Reason.NPU_SMI_HUNG, f"npu-smi {' '.join(args)} does not answer")
        if self._failure is not None:
            output, status = self._failure
        else:
            answer = npu_smi_tables.query(self._profile, self._rows, args)
            output, status = (UNKNOWN_QUERY, 1) if answer is None else (answer, 0)
        refuse_errors(f"npu-smi {' '.join(args)}", output, status)
        return output

    def _render(self, args: tuple[str, ...]) -> None:
        text = npu_smi_tables.query(self._profile, self._rows, args)
        if text is not None:
            put(self._folder / f"{'-'.join(arg.removeprefix('-') for arg in args)}.txt", text)
