"""TLS for a listener: a certificate with its key, and the CA of those who may ask."""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsPaths:
    """PEM files. kubelet, cert-manager and others replace them when they are renewed."""

    certificate: Path
    """With the chain behind it, if there is one."""
    key: Path
    client_ca: Path | None = None
    """With it a client has to show a certificate of this CA (mTLS)."""


class TlsFiles:
    """The files as they are now: read again when they were replaced, without a restart. Safe from any thread."""

    def __init__(self, paths: TlsPaths) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self._stamp: Stamp = ()
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """For one connection. OSError (ssl.SSLError is one) where the files could never be used; later on what was read
        last stands until there is something that can be."""
        with self._lock:
            try:
                stamp = self._stamp_now()
                if self._context is None or stamp != self._stamp:
                    self._context = self._read()
                    self._stamp = stamp
            except OSError as error:
                if self._context is None:
                    raise
                log.debug("the certificate for metrics cannot be read again: %s", error)
            return self._context

    def _stamp_now(self) -> Stamp:
        """A Secret's files are links, of which kubelet changes one: what they lead to counts."""
        files = [path.stat() for path in (self._paths.certificate, self._paths.key, self._paths.client_ca) if path]
        return tuple((file.st_ino, file.st_mtime_ns, file.st_size) for file in files)

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A key with a passphrase would make OpenSSL ask the terminal for it.
        context.load_cert_chain(self._paths.certificate, self._paths.key, password=lambda: "")
        if self._paths.client_ca is not None:
            context.load_verify_locations(self._paths.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context
