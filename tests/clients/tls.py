"""A certificate that nobody has signed, for the client that speaks TLS only."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


def make_certificate(folder: Path) -> None:
    """Write cert.pem and key.pem for this machine, valid for a day."""
    kind = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(["openssl", "req", *kind, *files, *subject], check=True, capture_output=True)


def tls_server(folder: Path) -> ssl.SSLContext:
    """A context with a fresh certificate."""
    make_certificate(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context
