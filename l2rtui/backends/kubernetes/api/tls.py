"""TLS of a context: its authority, and the client certificate of a login."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

from l2rtui.backends.kubernetes.api.kubeconfig import Access
from l2rtui.backends.kubernetes.api.login import ApiLogin, login_error
from l2rtui.errors import ConfigError


def authority_error(access: Access) -> ConfigError:
    """Create the error for an authority that cannot be read."""
    return ConfigError(f"The certificate authority of the context {access.context} is no PEM.")


def make_tls(access: Access) -> ssl.SSLContext:
    """Make the TLS context of a context, as the client library does.

    Raises:
        ConfigError: The authority's certificate cannot be used.
    """
    try:
        tls = ssl.create_default_context(cadata=access.ca.decode("ascii") or None)
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
        raise authority_error(access) from error
    # In this order: a context that checks host names must verify certificates.
    if access.is_insecure:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    # Python 3.13 checks strictly (RFC 5280), and many clusters' own authorities lack the Authority Key Identifier.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return tls


def load_certificate(tls: ssl.SSLContext, login: ApiLogin, user: str) -> None:
    """Load the login's client certificate and key into a TLS context.

    The library only accepts paths, and writes keys of a kubeconfig to files in /tmp that stay until the process
    ends (kubernetes/aio/config/kube_config.py, ``_create_temp_file_with_content``). Here the file is anonymous
    memory (Linux), or is in a folder of mode 0700 that is removed immediately.

    Raises:
        ApiError: They cannot be used.
    """
    try:
        _load(tls, login.certificate.rstrip() + b"\n" + login.key)
    except (ssl.SSLError, OSError) as error:
        raise login_error(
            f"The client certificate and key of {user} cannot be used: {error.args[-1]}.",
            "Write the kubeconfig again.",
        ) from error


def _load(tls: ssl.SSLContext, pem: bytes) -> None:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("l2rtui", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, pem)
            # An empty password: OpenSSL would ask for one on the terminal if the key is encrypted.
            tls.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory(prefix="l2rtui-") as folder:  # mode 0700
        path = Path(folder) / "login.pem"
        path.touch(mode=0o600)
        path.write_bytes(pem)
        tls.load_cert_chain(path, password="")
