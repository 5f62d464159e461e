"""Who belongs to a run on several machines: what others do to the rendezvous, and what it tells them."""

import contextlib
import json
import os
import re
import socket
import stat
import subprocess
import sys

import pytest
import train_runs
from launching import wait_for
from machines import machines  # noqa: F401
from test_machines import codes, finish, said_by

SECRET, OTHER_SECRET = "0123456789abcdef0123456789abcdef", "another-secret-of-another-run-01"

CONNECT = """
import json, socket, sys, time
def connect(address):
    for _ in range(600):
        try:
            return socket.create_connection((address, 29500), timeout=20)
        except OSError:
            time.sleep(0.1)
    sys.exit('nobody listens')
"""


def python_on(host, code, *arguments):
    """Begins a Python program on a machine; its stdin and stdout are pipes."""
    return subprocess.Popen([*host.prefix, sys.executable, "-c", CONNECT + code, *map(str, arguments)], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)


def open_files(pid):
    """The number of descriptors of a process; 0 once it has ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def begin(machines, hosts, rank, *arguments, env=None, program=("true",)):
    return machines.begin(hosts[rank], "/tmp", "--num-machines", len(hosts), "--main-process-ip", hosts[0].address, "--num-processes",
                          len(hosts), "--cpu", "--machine-rank", rank, *arguments, "--", *program, env=env)


def version_of(accel):
    """What launchers compare: the version, and the commit of a build that has one."""
    said = accel("--version").stdout
    commit = re.search(r"^commit (.*)$", said, re.MULTILINE)
    return said.split()[1] + (f" ({commit[1]})" if commit else "")


ASK = """
connection = connect(sys.argv[1])
connection.sendall(sys.argv[2].encode())
try:
    sys.stdout.write(connection.makefile(errors='replace').read())
except OSError:
    pass
"""


@pytest.mark.parametrize("hello", [
    "GET / HTTP/1.1\r\n\r\n",
    {"hello": {"version": "0.0.9", "run_id": "", "host": "old", "nonce": "0" * 64, "proof": ""}},
    {"version": "0.0.9", "machine_rank": 1, "num_machines": 2, "local_processes": 1, "host": "old", "settings": {}},
    {"version": "VERSION", "machine_rank": 1, "num_machines": 2, "local_processes": 1, "host": "old", "settings": {}},
], ids=["http", "version", "plain version", "settings"])
def test_a_line_of_a_stranger_does_not_end_the_start(machines, accel, hello):
    line = hello if isinstance(hello, str) else json.dumps(hello).replace("VERSION", version_of(accel)) + "\n"
    network = machines(3)
    hosts, stranger = network[:2], network[2]
    first = begin(machines, hosts, 0)
    answer, _ = python_on(stranger, ASK, hosts[0].address, line).communicate(timeout=60)
    ended = finish([first, begin(machines, hosts, 1)])
    assert codes(ended) == [0, 0], said_by(ended)
    assert re.search(rf"warning: .*{stranger.address} is turned away from {hosts[0].address}:29500: ", said_by(ended)[0]), ended
    # Nothing of the run is told.
    messages = [json.loads(line) for line in answer.splitlines()]
    assert set(messages[0]) == {"challenge", "version"} and len(messages) <= 2
    assert "settings" not in answer and "num_processes" not in answer and socket.gethostname() not in answer


def test_a_launcher_of_another_version_ends_at_once(machines):
    hosts = machines(2)
    listener = python_on(hosts[0], """
server = socket.create_server(('', 29500))
print('on', flush=True)
connection = server.accept()[0]
connection.sendall(b'{"challenge": "%s", "version": "9.9.9"}\\n' % (b'0' * 64))
connection.recv(100)
""")
    listener.stdout.readline()
    code, _, said = begin(machines, hosts, 1).finish()
    listener.communicate(timeout=20)
    assert code == 2 and f"machine 0 at {hosts[0].address}:29500 has accel 9.9.9, and this machine has accel" in said


def test_a_launcher_of_another_run_is_turned_away_alone(machines):
    hosts = machines(2)
    ids = [{"TORCHELASTIC_RUN_ID": name} for name in ("job-17.1", "job-17.0")]
    first = begin(machines, hosts, 0, env=ids[0])
    left_over = begin(machines, hosts, 1, env=ids[1])
    code, _, said = left_over.finish()
    assert code == 2 and "it belongs to run 'job-17.0', and machine 0 to another one (launch.run_id)" in said, said
    ended = finish([first, begin(machines, hosts, 1, "--run-id", "job-17.1")])
    assert codes(ended) == [0, 0], said_by(ended)
    assert (f"{socket.gethostname()} at {hosts[1].address} is turned away from {hosts[0].address}:29500: it belongs to run 'job-17.0', "
            "and machine 0 to 'job-17.1' (launch.run_id)") in said_by(ended)[0]


@pytest.mark.parametrize("secrets", [(SECRET, OTHER_SECRET), (SECRET, None), (None, SECRET)], ids=["another", "none", "not asked"])
def test_a_launcher_with_another_secret_is_turned_away(machines, secrets):
    hosts = machines(2)
    environments = [{"ACCEL_RUN_SECRET": secret} if secret else {} for secret in secrets]
    shows = ["sh", "-c", 'echo "the secret is ${ACCEL_RUN_SECRET-not here}" >&2']
    first = begin(machines, hosts, 0, env=environments[0], program=shows)
    code, _, said = begin(machines, hosts, 1, env=environments[1]).finish()
    assert code == 2 and ("it does not know the secret of this run" if secrets[0] else "has not proved that it knows the secret") in said
    ended = finish([first, begin(machines, hosts, 1, env=environments[0], program=shows)])
    assert codes(ended) == [0, 0], said_by(ended)
    assert all("the secret is not here" in text for text in said_by(ended))
    assert not any(secret in text for secret in (SECRET, OTHER_SECRET) for text in said_by(ended))


def test_a_short_secret_is_refused(machines):
    hosts = machines(2)
    code, _, said = begin(machines, hosts, 0, env={"ACCEL_RUN_SECRET": "letmein"}).finish()
    assert code == 2 and "ACCEL_RUN_SECRET has 7 characters, and 16 at least are needed" in said


def test_a_training_has_a_secret_in_its_output_dir(machines, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = train_runs.config(tmp_path, 2, max_steps=2)
    hosts = machines(2)
    first = machines.begin(hosts[0], tmp_path, "--num-machines", 2, "--machine-rank", 0, "--main-process-ip", hosts[0].address,
                            "--main-process-port", 29500, config)
    without = begin(machines, hosts, 1, program=["true"])
    code, _, said = without.finish()
    assert code == 2 and "it does not know the secret of this run" in said
    secret = tmp_path / "out/run_secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600 and len(secret.read_text()) == 65
    before = secret.read_text()
    second = machines.begin(hosts[1], tmp_path, "--num-machines", 2, "--machine-rank", 1, "--main-process-ip", hosts[0].address,
                            "--main-process-port", 29500, config)
    ended = finish([first, second], 120)
    assert codes(ended) == [0, 0], said_by(ended)
    assert secret.read_text() == before and not any(before.strip() in text for text in said_by(ended))


@contextlib.contextmanager
def connections(host, code, *arguments):
    """Holds what a program has connected until the end of the block."""
    holder = python_on(host, code + "\nprint('on', flush=True)\nsys.stdin.read()", *arguments)
    try:
        assert holder.stdout.readline() == "on\n"
        yield
    finally:
        holder.communicate("", timeout=20)


def test_silent_connections_keep_nobody_out(machines):
    hosts = machines(2)
    first = begin(machines, hosts, 0)
    with connections(hosts[1], "held = [connect(sys.argv[1]) for _ in range(900)]", hosts[0].address):
        wait_for(lambda: open_files(first.pid) > 10, 20)
        ended_second = begin(machines, hosts, 1, "--set", "launch.rendezvous_timeout=25")
        most = 0
        while ended_second.process.poll() is None:
            most = max(most, open_files(first.pid))
        ended = finish([first, ended_second], 60)
    assert codes(ended) == [0, 0], said_by(ended)
    assert most < 600


SEND_MUCH = """
held = []
for _ in range(64):
    held.append(connect(sys.argv[1]))
    held[-1].settimeout(1)
    try:
        held[-1].sendall(b'x' * (4 << 20))
    except OSError:
        pass
"""


def test_lines_without_an_end_take_no_memory(machines):
    hosts = machines(2)
    first = begin(machines, hosts, 0)
    with connections(hosts[1], SEND_MUCH, hosts[0].address):
        with open(f"/proc/{first.pid}/status", encoding="ascii") as status:
            peak_kib = int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1])
    ended = finish([first, begin(machines, hosts, 1)])
    assert codes(ended) == [0, 0], said_by(ended)
    assert peak_kib < 64 << 10


LEAD = """
server = socket.create_server(('', 29500))
print('on', flush=True)
welcome = {'machine_rank': 1, 'num_machines': 2, 'num_processes': 2, 'first_rank': 1, 'master_port': 29501, 'attempt': 0, 'restarts': 0,
           'run_id': 'accel-made-up', 'resume_from': '', 'is_finished': False, **json.loads(sys.argv[2])}
messages = [{'challenge': '0' * 64, 'version': sys.argv[1]}, {'accepted': '0' * 64 if sys.argv[3] else ''}, {'welcome': welcome}]
connection = server.accept()[0]
connection.sendall(''.join(json.dumps(message) + '\\n' for message in messages).encode())
connection.settimeout(20)
while connection.recv(4096):
    pass
"""


@pytest.mark.parametrize("made_up, said", [
    ({"first_rank": -5}, "'first_rank' is -5, and 1 is expected"),
    ({"num_processes": 1 << 40}, "'num_processes' is 1099511627776, and 2 is expected"),
    ({"master_port": 70000}, "'master_port' is 70000, and 1 to 65535 is expected"),
    ({"num_machines": 3}, "'num_machines' is 3, and 2 is expected"),
])
def test_a_made_up_welcome_ends_the_follower(machines, accel, made_up, said):
    hosts = machines(2)
    leader = python_on(hosts[0], LEAD, version_of(accel), json.dumps(made_up), "")
    leader.stdout.readline()
    code, _, text = begin(machines, hosts, 1).finish()
    leader.communicate(timeout=60)
    assert code == 1 and f"machine 0 at {hosts[0].address}:29500 sent a welcome that does not fit this run: {said}" in text, text


def test_a_follower_believes_no_leader_without_the_secret(machines, accel):
    hosts = machines(2)
    leader = python_on(hosts[0], LEAD, version_of(accel), "{}", "guess")
    leader.stdout.readline()
    code, _, said = begin(machines, hosts, 1, env={"ACCEL_RUN_SECRET": SECRET}).finish()
    leader.communicate(timeout=60)
    assert code == 2 and f"machine 0 at {hosts[0].address}:29500 has not proved that it knows the secret of this run" in said, said


def listens_on(host, address):
    """Whether somebody on a machine listens on port 29500 of an address."""
    code = "sys.exit(socket.socket().connect_ex((sys.argv[1], 29500)))"
    return subprocess.run([*host.prefix, sys.executable, "-c", "import socket, sys\n" + code, address]).returncode == 0


def test_machine_0_listens_on_its_address_alone(machines):
    hosts = machines(2)
    first = begin(machines, hosts, 0)
    wait_for(lambda: listens_on(hosts[0], hosts[0].address), 20)
    assert not listens_on(hosts[0], "127.0.0.1")
    ended = finish([first, begin(machines, hosts, 1)])
    assert codes(ended) == [0, 0], said_by(ended)


def test_a_name_may_lead_to_the_loopback_on_machine_0(machines):
    hosts = machines(2)
    common = ["--num-machines", 2, "--main-process-ip", "first", "--num-processes", 2, "--cpu", "--machine-rank"]
    for host, address in zip(hosts, ("127.0.1.1", hosts[0].address)):
        host.hosts.write_text(f"{host.hosts.read_text()}{address} first\n")
    ended = finish([machines.begin(host, "/tmp", *common, rank, "--", "true") for rank, host in enumerate(hosts)])
    assert codes(ended) == [0, 0], said_by(ended)


def test_the_port_of_the_store_may_be_fixed(machines, tmp_path):
    hosts = machines(2)
    options = ["--set", "launch.store_port=29655", "--max-restarts", 1]
    program = ["sh", "-c", f"echo $MASTER_PORT >> {tmp_path}/ports; [ $TORCHELASTIC_RESTART_COUNT = 1 ]"]
    ended = finish([begin(machines, hosts, rank, *options, program=program) for rank in range(2)])
    assert codes(ended) == [0, 0], said_by(ended)
    # A rank may be ended before it writes, once the other one has failed.
    assert set((tmp_path / "ports").read_text().split()) == {"29655"} and "restart 1 of 1" in said_by(ended)[0]
    with connections(hosts[0], "server = socket.create_server(('', 29655))"):
        ended = finish([begin(machines, hosts, rank, *options, program=program) for rank in range(2)])
    assert codes(ended) == [2, 2]
    assert all("'launch.store_port': port 29655 is in use" in said for said in said_by(ended)), said_by(ended)
