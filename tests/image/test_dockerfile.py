"""What can be said of the image without building it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from agent import __version__

ROOT = Path(__file__).parents[2]
LOCKED = ("--only-binary :all:", "--require-hashes")
DOCKERFILE = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS = [line.split() for line in DOCKERFILE.splitlines() if re.match("[A-Z]+ ", line)]


def _arguments(instruction: str) -> list[list[str]]:
    return [rest for name, *rest in INSTRUCTIONS if name == instruction]


def _commands() -> list[str]:
    """The commands of all RUN instructions, each in one line."""
    joined = re.sub(r"\\\n\s*", " ", DOCKERFILE)
    runs = re.findall(r"^RUN (.*)$", joined, re.MULTILINE)
    return [command.strip() for run in runs for command in run.split("&&")]


def test_it_is_built_in_a_base_that_is_pinned_to_a_patch_release_of_python_and_begins_with_nothing() -> None:
    assert _arguments("FROM") == [["${BASE_IMAGE}", "AS", "build"], ["scratch"]]
    default = dict(argument[0].split("=", 1) for argument in _arguments("ARG") if "=" in argument[0])["BASE_IMAGE"]
    version = re.fullmatch(r"python:(\d+)\.(\d+)\.\d+-slim-[a-z]+", default)
    assert version is not None
    assert (int(version[1]), int(version[2])) >= (3, 11)


def test_it_has_what_was_collected_for_run_time_and_nothing_else() -> None:
    last = [words for words in INSTRUCTIONS if words[0] == "COPY"][-1]
    assert last == ["COPY", "--from=build", "/runtime/", "/"]
    assert "python3 image/runtime.py /runtime /opt/cpubind" in _commands()


def test_whatever_is_installed_is_locked_with_its_hashes_or_made_here() -> None:
    installs = [command for command in _commands() if re.search(r"\bpip (install|wheel|download)\b", command)]
    assert len(installs) == 4
    for command in installs:
        locked = all(word in command for word in LOCKED) and re.search(
            r"--requirement requirements(-build)?\.lock", command
        )
        assert locked or "--no-index" in command, command
    (wheel,) = (command for command in installs if "pip wheel" in command)
    assert "--no-build-isolation" in wheel, "else pip would fetch what builds it, at any version"
    assert not [command for command in _commands() if re.search(r"\b(apt|apt-get|curl|wget|dnf|apk)\b", command)]


def test_an_index_in_place_of_pypi_can_be_given() -> None:
    assert ["PIP_INDEX_URL"] in _arguments("ARG")


def test_the_image_says_the_version_that_is_in_it() -> None:
    assert ["VERSION=" + __version__] in _arguments("ARG")


def test_it_runs_the_agent_as_root() -> None:
    last_stage = INSTRUCTIONS[[k for k, (name, *_) in enumerate(INSTRUCTIONS) if name == "FROM"][-1] :]
    assert ["USER", "0:0"] in last_stage
    assert last_stage[-2:] == [["ENTRYPOINT", '["cpubind"]'], ["CMD", '["run"]']]


def test_the_build_gets_what_the_package_is_made_from_and_nothing_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"], *packages}
    needed |= {"requirements.lock", "requirements-build.lock", "image/runtime.py"}
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == needed
    assert "**/__pycache__" in lines


def test_the_agent_uses_no_class_of_the_kubernetes_client_that_the_image_lacks() -> None:
    kept = set(re.findall(r"! -name (\w+)\.py", DOCKERFILE))
    assert kept == {"custom_objects_api"}
    used = {
        name
        for file in (ROOT / "agent").rglob("*.py")
        for name in re.findall(r"\b(\w+Api)\b", file.read_text())
        if name != "WellKnownApi"
    }
    assert {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in used} <= kept
    assert not [file for file in (ROOT / "agent").rglob("*.py") if "kubernetes.aio" in file.read_text()]
