"""tools/dev cluster [SCENARIO...]: trainings on machines with kernels of their own, whose output_dir is on NFS between them.

Something happens to each but the first. In the end the weights have to be those of the first, bit for bit.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import sys
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
import batch  # noqa: E402
import nfs  # noqa: E402
import train_runs  # noqa: E402
import uml  # noqa: E402

STEPS, EVERY = 40, 4
LOST_S = 60  # Within this time the others give a machine up that says nothing.


class Cluster:
    """A file server and three machines. A run has two ranks, on one machine each, and the third machine is there to take over."""

    def __init__(self, network, accel, directory):
        self.network, self.accel, self.directory = network, accel, directory
        nfs.make_disk(directory / "disk")
        self.server = network.add("files", 256, directory / "disk")
        self.machines = [network.add(f"node{number}", 1024) for number in range(3)]
        train_runs.export(directory / "gpt.pt")

    def boot(self):
        self.serve()
        for machine in self.machines:
            self.join(machine)

    def serve(self):
        self.server.boot()
        nfs.serve(self.server)

    def join(self, machine):
        machine.boot()
        nfs.mount(machine, self.server)

    def restore(self):
        """Ends what a scenario has left, so that the next one finds machines as at the beginning."""
        if not self.server.is_up():
            self.serve()
        for machine in self.machines:
            if any(process.code is None for process in machine.processes.values()):
                machine.kill()
            if not machine.is_up():
                self.join(machine)

    def config(self, name, ranks=2, steps=STEPS):
        """The configuration of a run in the folder `name` of the file server."""
        folder = self.directory / name
        folder.mkdir(exist_ok=True)
        return train_runs.config(folder, ranks, output_dir=f"{nfs.SHARED}/{name}", max_steps=steps, **{
            "main_process_port": 29500, "model.path": str(self.directory / "gpt.pt"),
            "checkpoint": {"every": EVERY, "resume": "auto"}})

    def launch(self, machines, name, steps=STEPS):
        """Begins that run. Returns its launchers."""
        config = self.config(name, len(machines), steps)
        cluster = ["--num-machines", len(machines), "--main-process-ip", machines[0].name]
        return [machine.start(self.accel, "launch", *(cluster if len(machines) > 1 else []), "--machine-rank", number, config,
                              env={"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}) for number, machine in enumerate(machines)]

    def finish(self, launchers, code=0):
        for launcher in launchers:
            launcher.wait()
        require([launcher.code for launcher in launchers] == [code] * len(launchers),
                "exit codes " + ", ".join(f"{one.code} ({one.machine.name}: {last_line(one)})" for one in launchers))

    def weights(self, name):
        """The manifest of the last checkpoint, which has the sums of all files."""
        path = f"{nfs.SHARED}/{name}/checkpoints/checkpoint_{STEPS}/accel_manifest.json"
        return json.loads(self.machines[2].run("cat", path))

    def compare(self, name, with_name="undisturbed"):
        require(self.weights(name) == self.weights(with_name), "the weights are not those of the undisturbed run")


class Fault(Exception):
    """What is wrong with a run."""


def require(holds, otherwise):
    if not holds:
        raise Fault(otherwise)


def last_line(launcher):
    errors = [line for line in launcher.said.splitlines() if "error: " in line]
    return (errors or launcher.said.splitlines() or ["nothing"])[-1]


def wait_for_step(launcher, step):
    uml.wait_for(lambda: re.search(rf"step +{step}/", launcher.said) or launcher.code is not None, 120,
                 lambda: launcher.said[-3000:])
    require(launcher.code is None, f"the run ended early: {last_line(launcher)}")


def undisturbed(cluster):
    """A run on two machines."""
    cluster.finish(cluster.launch(cluster.machines[:2], "undisturbed"))
    return "its weights are those that the others are compared with"


def two_jobs(cluster):
    """Two jobs begin on one output_dir, each on a machine of its own."""
    [first] = cluster.launch(cluster.machines[:1], "two-jobs", 100_000)
    wait_for_step(first, 1)
    [second] = cluster.launch(cluster.machines[1:2], "two-jobs", 100_000)
    uml.wait_for(lambda: second.code is not None or "step" in second.said, 120, lambda: second.said)
    for launcher in (first, second):
        if launcher.code is None:
            launcher.signal(signal.SIGINT)
            launcher.wait()
    require(second.code == 2, f"both run: {last_line(second)}")
    require("another run is writing into" in second.said, last_line(second))
    return "the second one is refused"


def killed_machine(cluster, victim):
    """The power of a machine is cut."""
    name = f"killed-{victim}"
    launchers = cluster.launch(cluster.machines[:2], name)
    wait_for_step(launchers[0], 10)
    cluster.machines[victim].kill()
    other = launchers[1 - victim]
    require(other.wait(LOST_S) == 6, f"the other machine's launcher ended with {other.code}: {last_line(other)}")
    cluster.join(cluster.machines[victim])
    cluster.finish(cluster.launch(cluster.machines[:2], name))
    cluster.compare(name)
    return f"the other one says: {last_line(other)}; the same command goes on"


def paused_machine(cluster, victim):
    """A machine is stopped, given up, replaced by another one, and wakes up while the run goes on there."""
    name = f"paused-{victim}"
    asleep, spare = cluster.machines[victim], cluster.machines[2]
    launchers = cluster.launch(cluster.machines[:2], name)
    wait_for_step(launchers[0], 10)
    asleep.pause()
    try:
        other = launchers[1 - victim]
        require(other.wait(LOST_S) == 6, f"the other machine's launcher ended with {other.code}: {last_line(other)}")
        replaced = cluster.launch([spare if machine is asleep else machine for machine in cluster.machines[:2]], name)
        wait_for_step(replaced[0], 16)
    finally:
        asleep.go_on()
    woken = launchers[victim]
    require(woken.wait(LOST_S) not in (0, None), f"the launcher that woke up ended with {woken.code}")
    cluster.finish(replaced)
    cluster.compare(name)
    return f"the launcher that wakes up ends with {woken.code}: {last_line(woken)}"


def paused_alone(cluster):
    """A machine is stopped that has a whole run, which is requeued on another one. It wakes up while the run goes on there."""
    asleep, _, spare = cluster.machines
    cluster.finish(cluster.launch([spare], "undisturbed-alone"))
    [launcher] = cluster.launch([asleep], "paused-alone")
    wait_for_step(launcher, 10)
    asleep.pause()
    try:
        replaced = cluster.launch([spare], "paused-alone")
        wait_for_step(replaced[0], 14)
    finally:
        asleep.go_on()
    woken = launcher.wait(LOST_S)
    cluster.finish(replaced)
    cluster.compare("paused-alone", "undisturbed-alone")
    require(woken == 1 and "another run has taken" in last_line(launcher), f"it ends with {woken}: {last_line(launcher)}")
    return f"the launcher that wakes up ends with {woken}: {last_line(launcher)}"


def requeue(cluster):
    """A run is preempted and goes on on other nodes."""
    launchers = cluster.launch(cluster.machines[:2], "requeue")
    wait_for_step(launchers[0], 10)
    launchers[0].signal(signal.SIGTERM)
    cluster.finish(launchers, 7)
    cluster.finish(cluster.launch(cluster.machines[1:], "requeue"))
    cluster.compare("requeue")
    return "saved, and resumed there"


def restarted_server(cluster, name, away_s):
    """The power of the file server is cut while a checkpoint is written, and it comes back."""
    launchers = cluster.launch(cluster.machines[:2], name)
    saving = f"/srv/shared/{name}/checkpoints/checkpoint_{2 * EVERY}.*.incomplete"
    cluster.server.run("sh", "-c", f"until test -e {saving}; do sleep 0.01; done", timeout=120)
    cluster.server.kill()
    time.sleep(away_s)
    cluster.serve()
    cluster.finish(launchers)
    cluster.compare(name)
    return "the run waits, and goes on"


def clocks_apart(cluster):
    """The clocks of the machines are two minutes apart. A run is preempted and goes on with their roles exchanged."""
    early, late = cluster.machines[:2]
    late.run("sh", "-c", "date --set @$(($(date +%s) + 120))")
    try:
        launchers = cluster.launch([early, late], "clocks")
        wait_for_step(launchers[0], 10)
        launchers[0].signal(signal.SIGTERM)
        cluster.finish(launchers, 7)
        cluster.finish(cluster.launch([late, early], "clocks"))
    finally:
        late.run("sh", "-c", "date --set @$(($(date +%s) - 120))")
    cluster.compare("clocks")
    return "nothing is different"


def dead_node(cluster):
    """The power of a node is cut while Slurm runs a job there. Slurm requeues the job on the nodes that are left."""
    batch.begin(cluster.server, cluster.machines, cluster.directory)
    log = f"{nfs.SHARED}/slurm.out"
    job = batch.submit(cluster.server, "--requeue", "--nodes=2", "--ntasks-per-node=1", "--open-mode=append", f"--output={log}",
                       "--export=ALL,OMP_NUM_THREADS=1,NO_COLOR=1", f"--wrap=srun {cluster.accel} launch {cluster.config('slurm')}")
    # Not by a node's view, which is seconds old, nor by the log, which a node writes back later.
    checkpoint = f"/srv/shared/slurm/checkpoints/checkpoint_{2 * EVERY}"
    uml.wait_for(lambda: cluster.server.start("test", "-e", checkpoint).wait() == 0, 120,
                 lambda: cluster.server.run("cat", "/srv/shared/slurm.out"))
    before = batch.state(cluster.server, job)
    require(before == "RUNNING node[0-1]", f"the job is {before}")
    cluster.machines[1].kill()
    uml.wait_for(lambda: batch.state(cluster.server, job).split()[0] in ("COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED"), 240,
                 lambda: f"the job is {batch.state(cluster.server, job)}")
    after = batch.state(cluster.server, job)
    require(after == "COMPLETED node[0,2]", f"the job is {after}")
    cluster.compare("slurm")
    return f"{before}, then {after}"


SCENARIOS = {
    "undisturbed": undisturbed,
    "two jobs": two_jobs,
    "kill -9, first machine": lambda cluster: killed_machine(cluster, 0),
    "kill -9, second machine": lambda cluster: killed_machine(cluster, 1),
    "pause, first machine": lambda cluster: paused_machine(cluster, 0),
    "pause, second machine": lambda cluster: paused_machine(cluster, 1),
    "pause, whole run": paused_alone,
    "requeue": requeue,
    "NFS server restarts": lambda cluster: restarted_server(cluster, "server", 0),
    "NFS server away for a minute": lambda cluster: restarted_server(cluster, "server-away", 60),
    "clocks apart": clocks_apart,
    "kill -9 under Slurm": dead_node,
}


def main():
    parser = argparse.ArgumentParser(prog="tools/dev cluster", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"one of: {', '.join(SCENARIOS)}; none: all")
    parser.add_argument("--build", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.scenarios if name not in SCENARIOS]:
        parser.error(f"no such scenario: {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    if os.getuid() != 0:
        parser.error("root is needed for the bridge between the machines")
    directory = arguments.build / "cluster"
    directory.mkdir(exist_ok=True)
    network = uml.Network(uml.fetch(arguments.cache), directory)
    cluster = Cluster(network, arguments.build / "src/cli/accel", directory)
    failed = 0
    with network:
        cluster.boot()
        for name in dict.fromkeys(["undisturbed", *(arguments.scenarios or SCENARIOS)]):
            try:
                seen, holds = SCENARIOS[name](cluster), "as expected"
            except (Fault, TimeoutError) as fault:
                seen, holds = str(fault), "FAULT"
                failed += 1
            print(f"| {name} | {holds} | {seen} |", flush=True)
            cluster.restore()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
