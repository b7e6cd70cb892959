"""A throw-away certificate authority, for one server on 127.0.0.1."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

HOST = "127.0.0.1"


class Certificates:
    """Its own CA and one certificate of it. Made in some milliseconds, kept in memory."""

    def __init__(self) -> None:
        self._authority = trustme.CA()
        self._leaf = self._authority.issue_cert(HOST)

    @property
    def ca(self) -> str:
        """The CA's certificate, in PEM."""
        return self._authority.cert_pem.bytes().decode()

    def for_server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._leaf.configure_cert(context)
        return context

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Certificate and key as files, for a server that is a program of its own."""
        chain, key = folder / "tls.crt", folder / "tls.key"
        chain.write_bytes(b"".join(pem.bytes() for pem in self._leaf.cert_chain_pems))
        self._leaf.private_key_pem.write_to_path(str(key))
        return chain, key


def write_signing_key(path: Path) -> None:
    """A key with which an API server signs tokens of service accounts, and by which it knows them again."""
    trustme.CA().issue_cert("service-accounts").private_key_pem.write_to_path(str(path))
