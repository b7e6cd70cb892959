"""How the API server is reached: its address, and the token and CA that kubelet mounts into the agent's pod."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from agent.model.reason import Reason, Refused, printable


def in_pod() -> bool:
    """Whether this process runs in a pod: kubelet names the API server to each."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


@dataclass(frozen=True, slots=True)
class Access:
    """An API server and who we are to it.

    The address comes from KUBERNETES_SERVICE_HOST, not from the name kubernetes.default.svc: with hostNetwork, or
    without a cluster DNS, there is nobody to resolve that. Token and CA are files that kubelet replaces.
    """

    server: str
    folder: Path

    @classmethod
    def in_cluster(cls, folder: Path) -> Access:
        """From the environment of a pod. `Refused` with ApiUnreachable where this is none."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
        if not host or not port:
            raise Refused(
                Reason.API_UNREACHABLE,
                "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is no pod; without a cluster "
                "use --standalone",
            )
        host = f"[{host}]" if ":" in host else host
        return cls(f"https://{host}:{port}", folder)

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    def token(self) -> str:
        """The token as it is now: kubelet writes a new one before the old one expires.

        Read for every request; these are few. `Refused` with ApiUnreachable where it can't be read.
        """
        try:
            return (self.folder / "token").read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            message = f"the service account's token cannot be read: {printable(str(error), 120)}"
            raise Refused(Reason.API_UNREACHABLE, message) from None
