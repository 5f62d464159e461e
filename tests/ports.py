"""Ports for servers that a test starts later."""

import contextlib
import socket


def reserved(port=0):
    """A socket that has the port, or any, and does not listen."""
    hold = socket.socket()
    hold.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        hold.bind(("", port))
    except OSError:
        hold.close()
        raise
    return hold


@contextlib.contextmanager
def held_port():
    """Yields a port. Only a server that binds this very port with SO_REUSEADDR, as torch.distributed's store does, can
    listen on it meanwhile: the kernel gives it to nobody who asks for any port (docs/design/029)."""
    with reserved() as hold:
        yield hold.getsockname()[1]


@contextlib.contextmanager
def two_held_ports():
    """Yields the first of two consecutive ports, held as by held_port()."""
    while True:
        with reserved() as first:
            port = first.getsockname()[1]
            try:
                second = reserved(port + 1)
            except (OSError, OverflowError):
                continue
            with second:
                yield port
            return
