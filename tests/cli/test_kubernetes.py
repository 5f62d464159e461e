"""configs/kubernetes/train.yaml is a Job whose pods are the machines of one run."""

import json
import pathlib

import pytest
import yaml

MANIFEST = pathlib.Path(__file__).parents[2] / "configs/kubernetes/train.yaml"


def value_of(report, key):
    [row] = [row for row in report["values"] if row["key"] == key]
    return row["value"], row["source"].get("where")


@pytest.fixture
def job():
    service, job = yaml.safe_load_all(MANIFEST.read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    # The names by which the pods find each other.
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    return job


@pytest.mark.parametrize("index", [0, 1])
def test_each_pod_of_the_job_is_a_machine(accel, job, tmp_path, index):
    spec = job["spec"]
    [container] = spec["template"]["spec"]["containers"]
    assert spec["completionMode"] == "Indexed" and container["command"] == ["accel", "launch"]
    config = tmp_path / "config.yaml"
    config.write_text("machine_rank: 0\nnum_machines: 1\n")
    [path, *flags] = container["args"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert str(pathlib.PurePath(path).parent) in mounts
    assert set(mounts.values()) == {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    checked = accel("check", "--json", config, *flags, "--", "true", env={"JOB_COMPLETION_INDEX": str(index)})
    report = json.loads(checked.stdout)
    assert value_of(report, "machine_rank") == (index, "JOB_COMPLETION_INDEX")
    assert value_of(report, "num_machines")[0] == spec["completions"] == spec["parallelism"]
    assert value_of(report, "main_process_ip")[0] == f"{job['metadata']['name']}-0.{spec['template']['spec']['subdomain']}"
    grace = spec["template"]["spec"]["terminationGracePeriodSeconds"]
    assert value_of(report, "launch.grace_period")[0] < grace


def test_a_pod_of_kubeflow_needs_nothing_else(accel, tmp_path):
    pod = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-master-0", "PET_MASTER_PORT": "23456",
           "PET_NPROC_PER_NODE": "8"}
    config = tmp_path / "config.yaml"
    config.write_text("machine_rank: 0\nnum_machines: 1\n")
    report = json.loads(accel("check", "--json", config, "--", "true", env=pod).stdout)
    assert {key: value_of(report, key) for key in ("num_machines", "machine_rank", "main_process_ip", "main_process_port",
                                                   "num_processes")} == {
        "num_machines": (2, "PET_NNODES"),
        "machine_rank": (1, "PET_NODE_RANK"),
        "main_process_ip": ("job-master-0", "PET_MASTER_ADDR"),
        "main_process_port": (23456, "PET_MASTER_PORT"),
        "num_processes": (16, "PET_NPROC_PER_NODE")}
