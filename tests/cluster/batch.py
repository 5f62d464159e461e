"""Slurm on machines of uml.py: its controller on the file server, a node on each of the others."""

import os
import pathlib
import sys

import uml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import slurm  # noqa: E402

HERE = "/tmp/slurm"  # On every machine, in its memory.
LOST_S = 10  # After so long a silence the controller takes a node for dead and requeues its job.


def begin(server, nodes, directory: pathlib.Path):
    """Starts the daemons. Slurm's commands then work on the server with the environment of environment()."""
    key = directory / "munge.key"
    if not key.exists():
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
    lines = [f"NodeName={node.name} NodeAddr={node.address} CPUs=1 State=UNKNOWN" for node in nodes]
    conf = slurm.CONF.format(directory=HERE, host=server.name, address=server.address, user="root", ports=[6817, 6818],
                             nodes="\n".join([f"SlurmdTimeout={LOST_S}", *lines]))
    (directory / "slurm.conf").write_text(conf)
    for machine in (server, *nodes):
        machine.run("sh", "-ec", f"""
            mkdir -p {HERE}/state {HERE}/spool.{machine.name}
            chmod 755 {HERE}
            cp {directory}/slurm.conf {HERE}
            munged --force --key-file={key} --socket={HERE}/munge.sock --pid-file={HERE}/munge.pid --log-file={HERE}/munge.log \\
                --seed-file={HERE}/seed""")
    daemons = [server.start("slurmctld", "-D", env=environment())]
    daemons += [node.start("slurmd", "-D", "-N", node.name, env=environment()) for node in nodes]

    def idle():
        count = server.run("sinfo", "--noheader", "--states=idle", "--format=%D", env=environment(), check=False)
        return count.strip() == str(len(nodes))

    uml.wait_for(idle, 60, lambda: "\n".join(daemon.said[-1000:] for daemon in daemons))


def environment():
    return {"SLURM_CONF": f"{HERE}/slurm.conf"}


def submit(server, *command):
    """Returns the number of the job."""
    return server.run("sbatch", "--parsable", *command, env=environment()).strip()


def state(server, job):
    """The job's state and nodes, such as 'RUNNING node[0-1]'."""
    return server.run("squeue", "--noheader", "--states=all", "--format=%T %N", "--job", job, env=environment()).strip()
