"""An NFS server on a machine of uml.py, and its clients: version 4.2, as clusters have it."""

import subprocess

SHARED = "/mnt"  # Where the clients have the shared folder.
LEASE_S = 10  # For how long the server keeps the locks of a client that is silent. Otherwise 90.


def libraries(programs):
    return {"LD_LIBRARY_PATH": f"{programs}/usr/lib/x86_64-linux-gnu:{programs}/lib/x86_64-linux-gnu"}


def make_disk(path, megabytes=512):
    """The server's disk, which outlives the machine."""
    path.unlink(missing_ok=True)
    with open(path, "wb") as file:
        file.truncate(megabytes << 20)
    subprocess.run(["mkfs.ext4", "-q", path], check=True)


def serve(machine):
    """Begins to serve the machine's disk. The names of the clients that hold locks are on it, too, so that they get them back
    when the machine has been restarted."""
    programs = machine.network.programs
    machine.run("modprobe", "-d", programs, "nfsd")
    machine.run("sh", "-ec", f"""
        mount -t nfsd nfsd /proc/fs/nfsd
        mount -t ext4 /dev/ubda /srv
        mkdir -p /srv/shared /srv/v4recovery /var/lib/nfs/v4recovery
        mount --bind /srv/v4recovery /var/lib/nfs/v4recovery
        touch /var/lib/nfs/etab
        echo {LEASE_S} >/proc/fs/nfsd/nfsv4leasetime
        echo {LEASE_S} >/proc/fs/nfsd/nfsv4gracetime""")
    for command in (["exportfs", "-i", "-o", "rw,sync,no_root_squash,no_subtree_check,fsid=0", "*:/srv/shared"],
                    ["rpc.mountd", "--no-nfs-version", "3"], ["rpc.nfsd", "--no-nfs-version", "3", "4"]):
        machine.run(programs / "usr/sbin" / command[0], *command[1:], env=libraries(programs))


def mount(machine, server):
    machine.run("modprobe", "-d", machine.network.programs, "nfsv4")
    machine.run("mount", "-i", "-t", "nfs4", "-o", f"vers=4.2,hard,addr={server.address},clientaddr={machine.address}",
                f"{server.name}:/", SHARED)
