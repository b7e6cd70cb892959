"""The folder that kubelet mounts into a pod for its service account."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Any


def write_service_account(folder: Path, *, token: str, ca: str, namespace: str) -> Path:
    """Writes `token`, `ca.crt` and `namespace`, or writes them anew.

    As kubelet does it: the files are links through `..data` to a folder, and `..data` is exchanged for the next one in
    one step. Who watches the file `token` itself sees nothing happen.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "..data"
    before = data.readlink() if data.is_symlink() else None
    fresh = folder / f"..{time.time_ns()}"
    fresh.mkdir()
    for name, content in {"token": token, "ca.crt": ca, "namespace": namespace}.items():
        (fresh / name).write_text(content)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    link = folder / "..data_tmp"
    link.symlink_to(fresh.name)
    os.replace(link, data)
    if before is not None:
        shutil.rmtree(folder / before)
    return folder


def unsigned_token(user: str, seconds: int = 3600) -> str:
    """A token that reads like a service account's JWT, expiry and all; the signature is noise."""
    now = int(time.time())
    claims = {"iss": "https://kubernetes.default.svc", "sub": user, "iat": now, "nbf": now, "exp": now + seconds}
    return ".".join((_part({"alg": "ES256", "typ": "JWT"}), _part(claims), secrets.token_urlsafe(32)))


def _part(document: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()
