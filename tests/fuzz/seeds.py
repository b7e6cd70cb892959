"""Texts that parsers know, what they are made of, and inputs that are bad for one of them."""

from __future__ import annotations

import gzip
import json
import struct
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

from agent.control.journal import BoundWorker, ConfinedProcess, IrqBans, Journal, TakenIrq, UvbThread
from agent.control.journal_file import dump
from agent.model.cpuset import CpuSet
from agent.model.node import Npu
from agent.model.outcome import MemoryOutcome
from agent.model.plan import Base, Roles
from agent.model.reason import Problem, Reason
from agent.model.spec import Cutting, Strategy
from agent.model.workload import ProcessId, ThreadId
from agent.node import proc_messages
from agent.planning.universe import Universe
from tests.kube.podresources_server import block, container, packed, unpacked
from tests.kube.podresources_server import device as npu_device
from tests.node.npu_smi.samples import device, info_text, mapping_text, process, topo_text

FIXTURES = Path(__file__).parents[1] / "fixtures"
StructError = struct.error
Floods = Mapping[str, Callable[[int], bytes]]


def of(kind: str) -> tuple[bytes, ...]:
    """The published texts of a kind."""
    return tuple(path.read_bytes() for path in sorted((FIXTURES / kind).iterdir()))


def many(unit: bytes, *, before: bytes = b"", behind: bytes = b"") -> Callable[[int], bytes]:
    """As many times the same as there is room for."""
    return lambda size: before + unit * ((size - len(before) - len(behind)) // len(unit)) + behind


TABLE = tuple(
    "|;+;-;=;+===+;\n;| ; |;\t;  ;NPU;NPU0;Phy-ID3;Chip;Health;Bus-Id;Name;NPU ID;Process id;Process name;"
    "Process memory(MB);CPU Affinity;Chip Logic ID;Chip ID;Chip Name;0;1;-1;99999999999;0-3;...;NA;X;:;Legend:;"
    "\x00;\r;\u2028;٣;²".encode().split(b";")
)
INFO = (
    *of("info"),
    *of("errors"),
    info_text([device(0, 0)], [process(0, 7, name="a\nb")]).encode(),
)
INVENTORIES = tuple(
    b"\f".join(part.encode() for part in parts)
    for parts in (
        (
            info_text([device(0, 0), device(1, 0)], [process(0, 7), process(1, 8)]),
            mapping_text([(0, 0, 0, "Ascend 910B3"), (1, 0, 1, "Ascend 910B3")]),
            topo_text({0: "0-23", 1: "24-47"}),
            "NPU ID : 0\nChip Name : 910B3\n",
        ),
        (info_text([device(0, "0     0")], [process(0, 7)], extra="Phy-ID"), "This device does not support this.\n"),
    )
)
"""The tables of a node, with form feeds between them."""

CPU_LISTS = (b"0-639\n", b"0-1,7,4095\n", b"\n", b"0,2,4,6,8,10,12-31\n")
CPU_MASKS = (b"ffffffff,00000000", b"f", b"00000001,00000000,00000000")
CPUS = (b"-", b",", b"0-4294967295", b"4095", b"4096", b"3-1", b"0x", b"\xd9\xa3", b" ", b"\n", b"_", b"+1")
CPU_FLOODS: Floods = {
    "commas": many(b","),
    "numbers": many(b"1,", behind=b"1"),
    "ranges": many(b"0-4095,", behind=b"1"),
    "to the last CPU of 32 bits": lambda _: b"0-4294967295",
    "digits": many(b"9"),
    "groups": many(b"ffffffff,", behind=b"f"),
}

CGROUP = (
    *(b":", b"/", b"/..", b"\n", b"0::", b"cpuset", b"name=systemd", b" (deleted)", b"kubepods", b".slice", b".scope"),
    *(b"kubepods-burstable-pod", b"-pod12345678_1234_1234_1234_123456789abc", b"cri-containerd-", b"a" * 64, b"conmon"),
    *(b"user.slice", b"machine.slice", b"lxc.payload.x", b"\0", b"\xff", b"//", b"/./"),
)
PATHS = tuple(line.split(b":", 2)[2] for text in of("cgroup") for line in text.split(b"\n") if line.count(b":") >= 2)
CGROUP_FLOODS: Floods = {
    "a path without end": many(b"/a", before=b"0::"),
    "a path upwards": many(b"/..", before=b"0::"),
    "containers in containers": many(b"/" + b"a" * 64, before=b"0::"),
    "lines": many(b"0::/\n"),
    "lines of pods": many(b"0::/kubepods/pod" + b"a" * 32 + b"/" + b"b" * 64 + b"\n"),
    "system lines": many(b"0::/system.slice/x.service\n"),
    "controllers": many(b"cpu,", before=b"3:", behind=b":/"),
}
NUMA_STAT = (
    b"anon N0=4096 N1=8192\nfile N0=0 N1=0\n",
    b"total=3 N0=3\nhierarchical_total=7 N0=7\nhierarchical_anon=12 N0=5 N1=7\n",
)

PROC = (b"(", b")", b" ", b"\n", b"\t", b":", b"-", b"0", b"18446744073709551616", b"rw-p", b"kB", b"S", b"\0", b"\xff")
STATS = (
    b"7 (VLLM::Worker) S 1 7 7 0 -1 4194560 100 0 0 0 5 6 0 0 20 0 301 0 8812 1 2 3\n",
    b"7 (a) R (b)\n) S 1 7 7 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0 0\n",
)
_STATUS = (
    b"Name:\tVLLM::Worker\nPid:\t7\nUid:\t0\t0\t0\t0\nNSpid:\t7\t1\nVmRSS:\t  4096 kB\nRssAnon:\t    2048 kB\n"
    b"Cpus_allowed:\tff\nCpus_allowed_list:\t0-7\nMems_allowed_list:\t0-1\n"
    b"voluntary_ctxt_switches:\t100\nnonvoluntary_ctxt_switches:\t17\n"
)
STATUSES = (_STATUS,)
MAPS = (
    b"aaab07c54000-aaab0d5f2000 rw-p 00000000 00:00 0                          [heap]\n"
    b"ffff80000000-ffff80021000 rw-p 00000000 00:00 0 \n"
    b"ffff80000000-ffff80021000 rw-s 00000000 00:05 533                        /dev/davinci_manager\n"
)
MAPS_FLOODS: Floods = {
    "short lines": many(b"0-1 rw-p 0 00:00 0\n"),
    "one name": many(b"x", before=b"0-1 rw-p 0 00:00 0 [anon:", behind=b"]\n"),
    "blanks": many(b" ", before=b"0-1 rw-p 0 00:00 0 ", behind=b"\n"),
}
MEMINFO = b"Node 0 MemTotal:       65805312 kB\nNode 0 MemFree:        61023044 kB\n"

INTERRUPTS_FLOODS: Floods = {
    "one interrupt": many(b" 0", before=b"2753:", behind=b"  sq_send_trigger_irq\n"),
    "numbers": many(b"1:\n"),
    "blanks": many(b"  ", before=b"2753:"),
}
IRQBALANCE = (
    b"SLEEP 10 IRQ 43 LOAD 0 DIFF 0 CLASS 0 IRQ 44 LOAD 0 DIFF 0 CLASS 0 BANNED 00000000",
    b"SLEEP 10 BANNED 00000000,00000001",
)


def _event(what: int, rest: bytes) -> bytes:
    event = struct.pack("=IIQ", what, 0, 1) + struct.pack("=ii", 7, 7) + rest.ljust(16, b"\0")
    return struct.pack("=IHHIIIIIIHH", 36 + len(event), 3, 0, 0, 0, 1, 1, 0, 0, len(event), 0) + event


PROC_EVENTS = (
    _event(proc_messages.COMM, b"acl_thread"),
    _event(proc_messages.FORK, struct.pack("=ii", 8, 7)) + _event(proc_messages.EXIT, b""),
)
PROC_EVENT_FLOODS: Floods = {
    "events": many(_event(proc_messages.COMM, b"x")),
    "headers": many(struct.pack("=IHHII", 16, 3, 0, 0, 0)),
}
TASKSTATS = (bytes(20) + struct.pack("=HHH2x", 6, 1, 27), bytes(20) + struct.pack("=HHI", 8, 2, 1))


def _entry(inode: int, name: bytes) -> bytes:
    size = -(-(19 + len(name) + 1) // 8) * 8
    return (struct.pack("=QqHB", inode, 1, size, 4) + name + b"\0").ljust(size, b"\0")


LISTINGS = (
    b"".join(_entry(n, name) for n, name in enumerate([b".", b"..", b"7", b"8", b"9"], 1)),
    b"".join(_entry(n, name) for n, name in enumerate([b".", b"..", b"4711", b"123456", b"x"], 1)),
)

UID = "12345678-1234-1234-1234-123456789abc"
JSON = tuple(
    b'{;};[;];,;:;";"";null;true;-1;1e400;NaN;Infinity;"\\ud800";"\\u0000";99999999999999999999999;[[[;{"a":;"version"'
    b";0.5;\\".split(b";")
)
CPU_MANAGER = (
    json.dumps(
        {"policyName": "static", "defaultCpuSet": "0,12-191", "entries": {UID: {"vllm": "1-2,4-11"}}, "checksum": 1}
    ).encode(),
    b'{"policyName":"none","defaultCpuSet":"","checksum":1353318690}',
)
POD_RESOURCES = (
    block(
        1,
        block(1, "llm-0")
        + block(2, "prod")
        + block(3, container("vllm", npu_device("huawei.com/Ascend910", "Ascend910-0"), packed(3, 1, 2, 300))),
    ),
    block(1, block(3, container("a", unpacked(3, 1, 2)))),
)
WIRE_FLOODS: Floods = {
    "empty pods": many(block(1, b"")),
    "empty containers": lambda size: block(1, many(block(3, b""))(size - 20)),
    "CPUs": lambda size: block(1, block(3, many(b"\x10\x01", before=b"")(size - 40))),
    "CPUs, packed": lambda size: block(1, block(3, block(3, many(b"\x01")(size - 60)))),
    "CPUs, all of them": lambda size: block(1, block(3, packed(3, *range(4096)))) * (size // 8100),
    "devices": lambda size: block(1, block(3, block(2, block(1, "huawei.com/A") + many(block(2, b""))(size - 80)))),
    "names": lambda size: block(1, many(block(1, b"x" * 100))(size - 20)),
    "a name": lambda size: block(1, block(1, b"x" * (size - 20))),
}
POD_RESOURCES_JSON = (
    json.dumps(
        {
            "pod_resources": [
                {
                    "name": "llm-0",
                    "namespace": "prod",
                    "containers": [
                        {
                            "name": "vllm",
                            "cpu_ids": [3, "4"],
                            "devices": [{"resource_name": "huawei.com/Ascend910", "device_ids": ["Ascend910-0"]}],
                        }
                    ],
                }
            ]
        }
    ).encode(),
)

POD = {
    "metadata": {
        "name": "llm-0",
        "namespace": "prod",
        "uid": UID,
        "resourceVersion": "17",
        "annotations": {
            "cpubind.dev/enabled": "true",
            "cpubind.dev/containers": "vllm",
            "cpubind.dev/helpers": "Leave",
        },
    },
    "spec": {"containers": [{"name": "vllm", "resources": {"limits": {"cpu": "1600m", "memory": "1Gi"}}}]},
    "status": {"containerStatuses": [{"name": "vllm", "containerID": "containerd://" + "a" * 64}]},
}
PODS = (json.dumps(POD).encode(), b'{"spec":{"containers":[{"name":"a","resources":{"requests":{"cpu":1.5e3}}}]}}')
POD_LISTS = (json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": [POD]}).encode(),)
PLAN = {
    "apiVersion": "cpubind.dev/v1alpha1",
    "kind": "CpuBindingPlan",
    "metadata": {
        "name": "a3-0",
        "uid": "u",
        "generation": 2,
        "resourceVersion": "18",
        "ownerReferences": [{"kind": "Node", "name": "a3-0"}],
    },
    "spec": {"mode": "Enforce", "reservedCpus": "0-3", "threadRules": [{"prefix": "ucm_", "role": "main"}]},
}
WATCHED = (
    json.dumps({"type": "ADDED", "object": POD}).encode(),
    json.dumps({"type": "MODIFIED", "object": PLAN}).encode(),
    json.dumps({"type": "DELETED", "object": PLAN}).encode(),
)
STATUS = (b'{"kind":"Status","message":"pods is forbidden","code":403}', b"", b"[]")
SPECS = (
    json.dumps(
        {
            "mode": "DryRun",
            "strategy": "NumaSlice",
            "deviceType": "A2",
            "reservedCpus": "0-3",
            "includeIsolatedCpus": False,
            "rebalance": "OnGrow",
            "helpers": "Confine",
            "threadRules": [{"prefix": "ucm_", "role": "main"}],
        }
    ).encode(),
    b'{"reservedCpus": 3, "irqBinding": true}',
)
SNAPSHOT_JSON = (
    json.dumps(
        {
            "version": 1,
            "node": "a3-0",
            "architecture": "aarch64",
            "files": 4,
            "pods": [POD],
            "settings": {"spec": {"mode": "DryRun"}},
            "status": {"npus": []},
        }
    ).encode(),
)
_WORKER = ProcessId(4711, 8812)
JOURNALS = (
    dump(Journal(boot_id="b")).encode(),
    dump(
        Journal(
            boot_id="b",
            universe=Universe("b", "24.1", (Npu(id=0, card=0, affinity=CpuSet.parse("0-23")),)),
            bases=(Base("default", CpuSet.parse("0-39"), (0,), 0, CpuSet.parse("0-39")),),
            cut_by=Cutting(Strategy.NUMA_SLICE, None, CpuSet.parse("0-3")),
            workers=(
                BoundWorker(
                    _WORKER,
                    CpuSet.parse("0-9"),
                    Roles(*map(CpuSet.parse, ("0-1", "2-7", "8", "9"))),
                    masks={ThreadId(4712, 8813): CpuSet.parse("3")},
                    memory=MemoryOutcome("Skipped", Problem(Reason.TARGET_NODE_FULL, "full"), 0, 0, 0, 0),
                ),
            ),
            irqs=(TakenIrq("0000:c1:00.0", "cq_update_irq", 0, 44, CpuSet.parse("0-9"), CpuSet.parse("1")),),
            bans=IrqBans(ProcessId(812, 9), frozenset({44})),
            uvb=(UvbThread(ThreadId(77, 5), CpuSet.parse("0-9"), CpuSet.parse("1")),),
            confined=(ConfinedProcess(ProcessId(9, 9), "c", CpuSet.parse("8-9"), {}),),
            settled={"c": frozenset({0})},
            spec={"mode": "Enforce"},
        )
    ).encode(),
)

YAML = (
    *(
        b"- ",
        b"? ",
        b": ",
        b"\n",
        b"  ",
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b"&a ",
        b"*a",
        b"<<: *a",
        b"!!int ",
        b"!!bool x",
    ),
    *(b"!!timestamp x", b"!!float ''", b"!!binary x", b"!!set ", b"!!omap ", b"!!python/object:os.system ", b"1:30:00"),
    *(b"1.0e400", b"0x", b"2001-99-99", b"|\n", b">\n", b"'", b'"', b"\t", b"%TAG ! x\n---\n", b"...\n", b"#", b"~"),
)
_PLAN = (
    b"apiVersion: cpubind.dev/v1alpha1\nkind: CpuBindingPlan\nmetadata:\n  name: a3-0\nspec:\n  mode: DryRun\n"
    b'  reservedCpus: "0-3"\n  threadRules:\n  - {prefix: ucm_, role: main}\n'
)
PLANS = (
    _PLAN,
    b"spec: {mode: Enforce, strategy: NumaSlice}\n",
    b"a: &a {x: 1}\nspec: {<<: *a}\n",
)
YAML_FLOODS: Floods = {
    "items": many(b"- a\n"),
    "flow": many(b"a,", before=b"[", behind=b"]"),
    "keys": lambda size: b"".join(b"a%d: x\n" % n for n in range(size // 12)),
    "brackets": many(b"["),
    "dashes": many(b"- "),
    "base 60": many(b":1", before=b"a: 1"),
    "base 60, a fraction": many(b":1", before=b"a: 1", behind=b".0"),
    "digits": many(b"9", before=b"a: "),
    "aliases": lambda _: (
        b"a0: &a0 [x]\n"
        + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 12))
    ),
    "merge keys": lambda _: (
        b"a: &a {%s}\n" % b",".join(b"k%d: 1" % n for n in range(4000))
        + b"".join(b"m%d: {<<: *a}\n" % n for n in range(4000))
    ),
    "few values within the limits": lambda _: b"".join(b"a%d: x\n" % n for n in range(49_000)),
}
_KUBECONFIG = (
    b"apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: k\n  cluster: {server: 'https://127.0.0.1:1'}\n"
    b"users:\n- name: u\n  user: {token: t}\ncontexts:\n- name: c\n  context: {cluster: k, user: u, namespace: prod}\n"
)
KUBECONFIGS = (_KUBECONFIG,)
ENVIRONMENTS = (
    b"MODE=DryRun\nRESERVED_CPUS=0-3\nTHREAD_RULE=ucm_=main\nSWEEP_INTERVAL=2.5\nNAMESPACES=prod,staging",
    b"METRICS_ADDRESS=[::1]:9486\nIRQ_BINDING=false\nNODE_NAME=a3-0\nLOG_LEVEL=debug",
)


def archive(*members: tuple[str, bytes | tarfile.TarInfo], gnu: bool = False) -> bytes:
    """A tar file of contents by name, or of headers as they are."""
    out = b""
    for name, content in members:
        header = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
        data = b"" if isinstance(content, tarfile.TarInfo) else content
        header.size = header.size or len(data)
        out += header.tobuf(tarfile.GNU_FORMAT if gnu else tarfile.PAX_FORMAT) + data + bytes(-len(data) % 512)
    return out + bytes(1024)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    """A header without a content."""
    header = tarfile.TarInfo(name)
    header.type, header.linkname, header.size = kind, link, size
    return header


_FILES = (("snapshot.json", b'{"version":1,"node":"a3-0"}'), ("root/proc/7/comm", b"x\n"))
ARCHIVES = (
    archive(*_FILES),
    gzip.compress(archive(*_FILES), mtime=0),
    archive(*_FILES, ("x" * 150, b"y"), ("l", member("l", tarfile.SYMTYPE, "/etc/shadow"))),
    archive(*_FILES, ("x" * 150, b"y"), gnu=True),
)
TAR = (b"\0" * 512, b"../", b"/", b"12 path=a/b\n", b"14 size=99999\n", b"0", b"5", b"x", b"L", b"S", b"\x80", b"\xff")
