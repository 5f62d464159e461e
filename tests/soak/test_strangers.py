"""Runs a small campaign of hostile connections, and one on a program that it must find faulty."""

import strangers


def test_strangers_neither_join_nor_disturb(accel_path, tmp_path):
    strangers.allow_descriptors()
    runs = strangers.campaign(accel_path, tmp_path, 3 * len(strangers.KINDS), "acted")
    assert [found.wrong for found in runs] == [[], [], [], []]
    by_moment = {found.moment: found for found in runs}
    assert set(by_moment["before"].ends) == set(strangers.KINDS)
    for kind in ("other_run", "other_version", "other_secret", "no_secret", "replay"):
        assert by_moment["before"].ends[kind] == {"refused in words": 3}
    assert by_moment["during"].total().total() >= 3 * len(strangers.KINDS)
    assert by_moment["after"].total() == {"not let in": 3 * len(strangers.KINDS)}


def test_a_machine_0_that_ends_is_found(tmp_path):
    liar = tmp_path / "liar"
    liar.write_text(LIAR)
    liar.chmod(0o755)
    found = strangers.run(liar, tmp_path / "run", "without")
    assert any("machine 0 ended with 3" in wrong for wrong in found.wrong), found.wrong


# It accepts everybody, and ends.
LIAR = """#!/usr/bin/env python3
import socket, sys
after = lambda name: int(sys.argv[sys.argv.index(name) + 1])
machine, port = after("--machine-rank"), after("--main-process-port")
if machine == 0:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen()
    connection = server.accept()[0]
    connection.sendall(b'{"challenge": "%s", "version": "0"}\\n' % (b"0" * 64))
    connection.recv(4096)
    connection.sendall(b'{"accepted": ""}\\n')
    sys.exit(3)
"""
