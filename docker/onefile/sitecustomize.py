# ruff: noqa: INP001  (a file of the interpreter that is built)
"""What the interpreter in the one file does before anything else; at every start, so it imports nothing new."""

import os
import sys

sys.path.append(os.path.join(sys.prefix, "lib", "app"))  # noqa: PTH118  (pathlib costs a tenth of a start)
CAS = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")
# OpenSSL looks where the machine kept its certificates that this file was built on; other distributions differ.
if "SSL_CERT_FILE" not in os.environ and not os.path.exists("@CERTIFICATES@"):  # noqa: PTH110
    for path in CAS:
        if os.path.exists(path):  # noqa: PTH110
            os.environ["SSL_CERT_FILE"] = path
            break
