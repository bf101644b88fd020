"""Amazon's services behind a port of this machine, with an empty account."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def moto_server() -> Iterator[str]:
    """Yield the address. All servers of a process share one account: what earlier tests left is removed."""
    from moto.server import ThreadedMotoServer  # a second of computing, which only its tests pay

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        connection = http.client.HTTPConnection(host, port)
        connection.request("POST", "/moto-api/reset")
        assert connection.getresponse().status == 200
        connection.close()
        yield f"http://{host}:{port}"
    finally:
        server.stop()
