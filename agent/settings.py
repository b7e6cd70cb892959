"""All settings: defaults < environment ``CPUBIND_*`` < command-line flags."""

from __future__ import annotations

import platform
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from agent.model.reason import Reason, Refused, printable
from agent.model.spec import Spec
from agent.planning.validation import SPEC_FIELDS, parse_spec


class Settings(BaseSettings):
    """Settings of a run. The second group has the names and meanings of a plan's `spec`, whose absent fields it fills.

    No field may be called ``port`` or ``service_host``: Kubernetes sets ``CPUBIND_PORT`` and
    ``CPUBIND_SERVICE_HOST`` in every pod of a namespace that has a Service called cpubind.
    """

    model_config = SettingsConfigDict(env_prefix="CPUBIND_", extra="ignore", env_ignore_empty=True)

    host_root: Path = Path("/")
    npu_smi: str = "npu-smi"
    npu_smi_timeout: float = Field(10.0, gt=0, le=600)
    node_name: str = Field(default_factory=socket.gethostname, min_length=1, max_length=253)
    architecture: str = Field(default_factory=platform.machine, min_length=1)
    state_file: Path | None = None
    journal_file: Path | None = None
    lock_file: Path | None = None
    sweep_interval: float = Field(5.0, ge=0.05, le=3600)
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
    thread_rules: Annotated[tuple[str, ...] | None, NoDecode] = None
    allow_any_architecture: bool | None = None

    @field_validator("thread_rules", mode="before")
    @classmethod
    def _split_rules(cls, value: object) -> object:
        """``CPUBIND_THREAD_RULES=ucm_=main,hccl=acl``."""
        return tuple(part for part in value.split(",") if part) if isinstance(value, str) else value

    def spec_defaults(self) -> Spec:
        """What an absent field of a plan's spec means; raises `Refused` with `InvalidSpec`."""
        named: dict[str, Any] = {
            "mode": self.mode,
            "strategy": self.strategy,
            "deviceType": self.device_type,
            "reservedCpus": self.reserved_cpus,
            "includeIsolatedCpus": self.include_isolated_cpus,
            "rebalance": self.rebalance,
            "irqBinding": self.irq_binding,
            "memoryMigration": self.memory_migration,
            "uvbBinding": self.uvb_binding,
            "helpers": self.helpers,
            "threadRules": None if self.thread_rules is None else [_rule(rule) for rule in self.thread_rules],
            "allowAnyArchitecture": self.allow_any_architecture,
        }
        try:
            return parse_spec({field: value for field, value in named.items() if value is not None})
        except Refused as refused:
            message = refused.message
            for field in SPEC_FIELDS:
                flag = "--" + "".join(f"-{c.lower()}" if c.isupper() else c for c in field)
                message = message.replace(f"spec.{field}", flag.removesuffix("s") if field == "threadRules" else flag)
            raise Refused(refused.reason, message) from None


def load_settings(flags: dict[str, Any]) -> Settings:
    """Settings with these flags on top; None stands for a flag that was not given. `Refused` says what is wrong."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        flag = f"--{name.replace('_', '-')}" if name in given else f"CPUBIND_{name.upper()}"
        value = printable(repr(first["input"]), 60)
        raise Refused(Reason.INVALID_SPEC, f"{flag}: {value}: {printable(first['msg'], 120)}") from None


def _rule(text: str) -> dict[str, str]:
    prefix, _, role = text.rpartition("=")
    return {"prefix": prefix, "role": role}
