"""A seccomp profile that refuses move_pages, as containerd's default one does with the five capabilities."""

from __future__ import annotations

import json
import platform
import struct
import subprocess
import sys

from agent.cli.checks import Check
from agent.node.pages import _NUMBERS
from tests.privileges.rig import FIVE, just, need_root

need_root()

# struct sock_filter (linux/filter.h): the call's number is loaded; move_pages is answered EPERM, all else let pass.
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001

_WITHOUT_MOVE_PAGES = """\
import ctypes, os, sys
program = bytes.fromhex(sys.argv[1])
code = ctypes.create_string_buffer(program, len(program))
class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))
assert ctypes.CDLL(None).prctl(22, 2, ctypes.byref(Program(len(program) // 8, ctypes.addressof(code))), 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Takes on a filter (PR_SET_SECCOMP, SECCOMP_MODE_FILTER; the process has no_new_privs) and runs a program."""


def refusing(number: int) -> tuple[str, ...]:
    """A command that runs another without this system call."""
    steps = [(_LOAD, 0, 0, 0), (_EQUAL, 0, 1, number), (_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)]
    program = b"".join(struct.pack("=HBBI", *step) for step in steps)
    return (sys.executable, "-I", "-S", "-c", _WITHOUT_MOVE_PAGES, program.hex())


def test_doctor_says_that_no_memory_is_moved_and_what_to_do() -> None:
    command = [
        *just(FIVE),
        *refusing(_NUMBERS[platform.machine()]),
        sys.executable,
        "-m",
        "agent",
        "doctor",
        "-o",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = {entry["name"]: Check(**entry) for entry in json.loads(done.stdout)}
    memory = found["memory"]
    assert (memory.result, memory.message) == ("warn", "move_pages: Operation not permitted")
    assert "seccomp" in memory.fix
    assert "memoryMigration" in memory.fix
    assert found["events"].result == found["CAP_SYS_PTRACE"].result == "ok"
