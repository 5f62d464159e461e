"""A Slurm on this machine, of the user who runs the tests. Its nodes are this host or machines of machines.py."""

import contextlib
import getpass
import os
import pathlib
import shutil
import socket
import subprocess
import time

import ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")

CONF = """
ClusterName=test
SlurmctldHost={host}({address})
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.sock,cred_expire=5
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=bf_interval=1,sched_interval=1
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def on(machine, *command):
    """The command line that runs a command on a machine, or on this host."""
    return [*machine.prefix, *command] if machine else list(command)


def end(process):
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def cluster(directory: pathlib.Path, machines=()):
    """Runs the daemons, with a node on each of `machines`, or one on this host. Yields the environment in which Slurm's
    commands find them; with machines, the commands run on the first of them."""
    assert all(shutil.which(name) for name in PROGRAMS), "slurm-wlm and munge are not installed; run tools/dev setup"
    directory.chmod(0o755)  # munged refuses a socket in a directory that others cannot enter.
    host = socket.gethostname().split(".")[0]
    nodes = {machine.host: machine for machine in machines} or {host: None}
    for name in ("state", *(f"spool.{node}" for node in nodes)):
        (directory / name).mkdir()
    key = directory / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    conf = directory / "slurm.conf"
    lines = [f"NodeName={name} NodeAddr={machine.address if machine else '127.0.0.1'} CPUs={os.cpu_count()} State=UNKNOWN"
             for name, machine in nodes.items()]
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    with contextlib.ExitStack() as stack:
        # The daemons bind with SO_REUSEADDR. On machines, nobody else takes ports.
        held = [stack.enter_context(ports.held_port()) for _ in range(2)]
        conf.write_text(CONF.format(directory=directory, host=host, user=getpass.getuser(), ports=held, nodes="\n".join(lines),
                                    address=machines[0].address if machines else "127.0.0.1"))

        def run(*command, machine=machines[0] if machines else None):
            log = stack.enter_context(open(directory / f"{command[0]}.{machine.host if machine else host}.out", "w"))
            process = subprocess.Popen(on(machine, *command), env=environment, stdout=log, stderr=log)
            stack.callback(end, process)

        def until(done, what):
            for _ in range(300):
                if done():
                    return
                time.sleep(0.1)
            logs = "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in directory.glob("*.out"))
            raise AssertionError(f"{what} after 30 s\n{logs}")

        run("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={directory}/munge.sock", f"--pid-file={directory}/munge.pid",
            f"--log-file={directory}/munge.log", f"--seed-file={directory}/seed")
        until((directory / "munge.sock").exists, "munged has no socket")
        run("slurmctld", "-D")
        for name, machine in nodes.items():
            run("slurmd", "-D", "-N", name, machine=machine)
        count = on(machines[0] if machines else None, "sinfo", "--noheader", "--states=idle", "--format=%D")
        until(lambda: subprocess.run(count, env=environment, capture_output=True, text=True).stdout.strip() == str(len(nodes)),
              "the nodes are not idle")
        yield environment
