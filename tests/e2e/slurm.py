"""A Slurm of one node on this machine, of the user who runs the tests."""

import contextlib
import getpass
import os
import pathlib
import shutil
import socket
import subprocess
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.sock
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
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
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count):
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


def end(process):
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def cluster(directory: pathlib.Path):
    """Runs the daemons, and yields the environment in which Slurm's commands find them."""
    assert all(shutil.which(name) for name in PROGRAMS), "slurm-wlm and munge are not installed; run tools/dev setup"
    directory.chmod(0o755)  # munged refuses a socket in a directory that others cannot enter.
    for name in ("state", "spool"):
        (directory / name).mkdir()
    key = directory / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    host = socket.gethostname().split(".")[0]
    conf = directory / "slurm.conf"
    conf.write_text(CONF.format(directory=directory, host=host, user=getpass.getuser(), ports=free_ports(2), cores=os.cpu_count()))
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    with contextlib.ExitStack() as stack:
        def run(*command):
            log = stack.enter_context(open(directory / f"{command[0]}.out", "w"))
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
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
        run("slurmd", "-D", "-N", host)
        until(lambda: "idle" in subprocess.run(["sinfo", "--noheader"], env=environment, capture_output=True, text=True).stdout,
              "the node is not idle")
        yield environment
