"""The kinds of hostile connections to a rendezvous, and the messages of its protocol that they use."""

import asyncio
import hashlib
import hmac
import json
import secrets
import socket
import struct

SECRET = "0123456789abcdef0123456789abcdef"
RUN_ID = "job-17"


def proof(role, challenge, nonce, version, secret=SECRET, run_id=RUN_ID):
    text = f"accel rendezvous {role}\n{challenge}\n{nonce}\n{version}\n{run_id}"
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def hello(version, nonce, told, run_id=RUN_ID):
    return (
        json.dumps(
            {
                "hello": {
                    "version": version,
                    "run_id": run_id,
                    "host": "stranger",
                    "nonce": nonce,
                    "proof": told,
                }
            }
        )
        + "\n"
    )


class Stranger:
    """One connection. `challenge` is what machine 0 said first. `recorded` is a hello that it has
    accepted before."""

    def __init__(self, reader, writer, challenge, recorded):
        self.reader, self.writer, self.recorded = reader, writer, recorded
        self.challenge, self.version = challenge["challenge"], challenge["version"]

    async def send(self, text):
        self.writer.write(text if isinstance(text, bytes) else text.encode())
        await self.writer.drain()

    async def silent(self):
        pass

    async def garbage(self):
        await self.send(secrets.token_bytes(200).replace(b"\n", b"") + b"\n")

    async def half_a_line(self):
        await self.send('{"hello": {"version": ')

    async def no_end_of_line(self):
        for _ in range(64):
            await self.send(b"x" * 65536)

    async def other_run(self):
        nonce = secrets.token_hex(32)
        await self.send(
            hello(
                self.version,
                nonce,
                proof("member", self.challenge, nonce, self.version, run_id="job-16"),
                "job-16",
            )
        )

    async def other_version(self):
        await self.send(hello("0.0.1", secrets.token_hex(32), ""))

    async def other_secret(self):
        nonce = secrets.token_hex(32)
        await self.send(
            hello(
                self.version,
                nonce,
                proof("member", self.challenge, nonce, self.version, secret="x" * 32),
            )
        )

    async def no_secret(self):
        await self.send(hello(self.version, secrets.token_hex(32), ""))

    async def replay(self):
        await self.send(self.recorded)

    async def http(self):
        await self.send("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")

    async def slow(self):
        for letter in hello(self.version, secrets.token_hex(32), ""):
            await self.send(letter)
            await asyncio.sleep(0.2)

    async def reset(self):
        self.writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.writer.transport.abort()

    async def deep_json(self):
        await self.send("[" * 15_000 + "\n")

    async def join_without_hello(self):
        await self.send(
            '{"join": {"machine_rank": 1, "num_machines": 2, "local_processes": 1, '
            '"settings": {}, "argument_hashes": []}}\n'
        )


KINDS = [
    name
    for name, value in vars(Stranger).items()
    if asyncio.iscoroutinefunction(value) and name != "send"
]
