"""All settings: defaults < environment ``CPUBIND_*`` < command-line flags."""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from agent.model.address import parse_address
from agent.model.reason import Reason, Refused, printable
from agent.model.spec import Spec
from agent.planning.validation import parse_spec

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where kubelet mounts the token of a pod's service account."""


class Settings(BaseSettings):
    """Settings of a run. The second group has the names and meanings of a plan's `spec`, whose absent fields it fills.

    No field may be called ``port`` or ``service_host``: Kubernetes sets ``CPUBIND_PORT`` and
    ``CPUBIND_SERVICE_HOST`` in every pod of a namespace that has a Service called cpubind.
    """

    model_config = SettingsConfigDict(env_prefix="CPUBIND_", extra="ignore", env_ignore_empty=True)

    host_root: Path = Path("/")
    npu_smi: str = "npu-smi"
    npu_smi_timeout: float = Field(10.0, gt=0, le=600)
    npu_smi_library_path: str = ""
    node_name: str = Field(default_factory=socket.gethostname, min_length=1, max_length=253)
    architecture: str = Field(default_factory=platform.machine, min_length=1)
    state_file: Path | None = None
    journal_file: Path | None = None
    lock_file: Path | None = None
    sweep_interval: float = Field(5.0, ge=0.05, le=3600)
    memory_timeout: float = Field(10.0, gt=0, le=3600)
    status_interval: float = Field(10.0, ge=0.05, le=3600)
    api_jitter: float = Field(10.0, ge=0, le=600)
    pod_selection: Literal["Annotated", "AllNpuPods"] = "Annotated"
    namespaces: Annotated[tuple[str, ...], NoDecode] = ()
    exclude_namespaces: Annotated[tuple[str, ...], NoDecode] = ()
    service_account_dir: Path = SERVICE_ACCOUNT
    health_address: str = ":8086"
    metrics_address: str = ":9486"
    """In a cluster. A standalone agent serves none unless it is set: its host has no network policy and, mostly, nobody
    who scrapes it."""
    metrics_tls_cert: Path | None = None
    metrics_tls_key: Path | None = None
    metrics_tls_client_ca: Path | None = None
    metrics_per_pod: bool = False
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    mode: str | None = None
    strategy: str | None = None
    device_type: str | None = None
    reserved_cpus: str | None = None
    include_isolated_cpus: bool | None = None
    rebalance: str | None = None
    irq_binding: bool | None = None
    memory_migration: bool | None = None
    uvb_binding: bool | None = None
    helpers: str | None = None
    thread_rule: Annotated[tuple[str, ...] | None, NoDecode] = None
    allow_any_architecture: bool | None = None

    flags: frozenset[str] = frozenset()
    """Names of the settings that were given as flags."""

    @field_validator("thread_rule", mode="before")
    @classmethod
    def _split_rules(cls, value: object) -> object:
        """``CPUBIND_THREAD_RULE=ucm_=main,hccl=acl``."""
        return tuple(part for part in value.split(",") if part) if isinstance(value, str) else value

    @field_validator("namespaces", "exclude_namespaces", mode="before")
    @classmethod
    def _split_names(cls, value: object) -> object:
        """``CPUBIND_NAMESPACES=prod,staging``."""
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("namespaces", "exclude_namespaces")
    @classmethod
    def _are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _LABEL.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a namespace")
        return value

    @field_validator("health_address", "metrics_address")
    @classmethod
    def _is_address(cls, value: str) -> str:
        try:
            parse_address(value)
        except Refused as refused:
            raise ValueError(refused.message) from None
        return value

    def spec(self, base: Spec | None = None, *, only: Collection[str] | None = None) -> Spec:
        """What an absent field of a plan's spec means: these settings over `base`. `only`: just these settings.

        Raises `Refused` with `InvalidSpec`, which names the flag or variable.
        """
        values = {
            setting: getattr(self, setting)
            for setting in _SPEC_SETTINGS
            if getattr(self, setting) is not None and (only is None or setting in only)
        }
        try:
            if "thread_rule" in values:
                values["thread_rule"] = [_rule(rule) for rule in values["thread_rule"]]
            return parse_spec({_SPEC_SETTINGS[name]: value for name, value in values.items()}, base)
        except Refused as refused:
            message = refused.message
            for setting, field in _SPEC_SETTINGS.items():
                message = message.replace(f"spec.{field}", name_of(setting, given=setting in self.flags))
            raise Refused(refused.reason, message) from None


_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""An RFC 1123 label, as the names of namespaces are."""

_SPEC_SETTINGS = {
    "mode": "mode",
    "strategy": "strategy",
    "device_type": "deviceType",
    "reserved_cpus": "reservedCpus",
    "include_isolated_cpus": "includeIsolatedCpus",
    "rebalance": "rebalance",
    "irq_binding": "irqBinding",
    "memory_migration": "memoryMigration",
    "uvb_binding": "uvbBinding",
    "helpers": "helpers",
    "thread_rule": "threadRules",
    "allow_any_architecture": "allowAnyArchitecture",
}
"""Settings that are defaults of a plan's `spec`, with the field's name there."""
SPEC_SETTINGS = frozenset(_SPEC_SETTINGS)

OTHER_FLAGS = frozenset(
    {
        *("standalone", "dry_run", "select", "snapshot", "output", "cluster", "device", "serve", "real"),
        *("with_environment", "with_command_lines"),
    }
)
"""Flags of single commands; they, too, can be set by the environment."""

_SERVICE = re.compile(r"CPUBIND(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_[A-Z0-9_]+)?)")
"""Variables that Kubernetes sets for Services whose names begin with cpubind."""


def name_of(setting: str, *, given: bool) -> str:
    """How a person set it: by a flag or by a variable."""
    return f"--{setting.replace('_', '-')}" if given else f"CPUBIND_{setting.upper()}"


def load_settings(flags: dict[str, Any]) -> Settings:
    """Settings with these flags on top; None stands for a flag that was not given. `Refused` says what is wrong."""
    given = {name: value for name, value in flags.items() if value is not None}
    known = {f"CPUBIND_{name.upper()}" for name in ({*Settings.model_fields} - {"flags"}) | OTHER_FLAGS}
    for variable in sorted(os.environ):
        if variable.startswith("CPUBIND_") and variable not in known and not _SERVICE.fullmatch(variable):
            near = get_close_matches(variable, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise Refused(Reason.INVALID_SPEC, f"{printable(variable, 60)} sets nothing that is known{hint}")
    try:
        settings = Settings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        value = printable(repr(first["input"]), 60)
        message = f"{name_of(name, given=name in given)}: {value}: {printable(first['msg'], 120)}"
        raise Refused(Reason.INVALID_SPEC, message) from None
    _check_tls(settings, given)
    return settings.model_copy(update={"flags": frozenset(given)})


def _check_tls(settings: Settings, given: Collection[str]) -> None:
    """A certificate without its key serves nobody, and who asks for mTLS must not get less."""
    names = ("metrics_tls_cert", "metrics_tls_key", "metrics_tls_client_ca")
    for needed in names[:2]:
        asking = [name for name in names if getattr(settings, name) is not None]
        if asking and needed not in asking:
            asked = name_of(asking[0], given=asking[0] in given)
            message = f"{name_of(needed, given=asking[0] in given)} is missing: {asked} needs it"
            raise Refused(Reason.INVALID_SPEC, message)


def _rule(text: str) -> dict[str, str]:
    prefix, equals, role = text.rpartition("=")
    if not equals:
        raise Refused(Reason.INVALID_SPEC, f"spec.threadRules: {printable(repr(text), 60)} is not PREFIX=ROLE")
    return {"prefix": prefix, "role": role}
