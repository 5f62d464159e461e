"""Ports for servers that a test starts later."""

import contextlib
import socket


@contextlib.contextmanager
def held_port():
    """Yields a port. Only a server that binds this very port with SO_REUSEADDR, as torch.distributed's store does, can
    listen on it meanwhile: the kernel gives it to nobody who asks for any port (docs/design/029)."""
    with socket.socket() as hold:
        hold.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        hold.bind(("", 0))
        yield hold.getsockname()[1]
