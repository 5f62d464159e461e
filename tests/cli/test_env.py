"""`accel env` shows the facts of this machine, and does not hang with a program that it asks."""

import json
import os
import pathlib
import platform
import signal
import stat
import subprocess
import sys
import time

import pytest


@pytest.fixture
def program(tmp_path):
    """program(NAME, SCRIPT) makes a shell script in a folder, and returns the folder. It is the first on PATH."""

    def made(name, script) -> pathlib.Path:
        folder = tmp_path / "programs"
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return folder

    return made


def before_path(folder) -> dict[str, str]:
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def rows(text) -> dict[str, list[str]]:
    """Returns the lines of the report by their names."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        name = line[:13].strip() or name
        found.setdefault(name, []).append(line[15:])
    return found


def test_report_names_everything(accel):
    found = rows(accel("env").stdout)
    assert list(found) == ["accel", "built with", "accel-worker", "kernel", "distribution", "processor", "CPUs",
                           "memory", "NUMA nodes", "/dev/shm", "GPUs", "NVIDIA driver", "batch system", "Python",
                           "variables"]
    assert found["kernel"] == [f"Linux {platform.release()} {platform.machine()}"]
    assert all(text.strip() for lines in found.values() for text in lines)


def test_json_has_the_facts_of_this_machine(accel):
    document = json.loads(accel("env", "--json").stdout)
    version = accel("--version").stdout.splitlines()
    assert f"accel {document['accel']['version']}" == version[0]
    assert f"commit {document['accel']['commit']}" == version[1]
    assert document["cpus"]["allowed"] == sorted(os.sched_getaffinity(0))
    assert 1 <= document["cpus"]["physical_cores"] <= len(document["cpus"]["allowed"])
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert abs(document["memory"]["bytes"] - total) < total / 100
    assert 0 < document["memory"]["available_bytes"] <= document["memory"]["bytes"]
    shm = os.statvfs("/dev/shm")
    assert document["shm"]["bytes"] == shm.f_blocks * shm.f_frsize


def test_packages_of_the_python_on_path(accel):
    """The tests run with a Python that has torch and accelerate."""
    import importlib.metadata

    python = json.loads(accel("env", "--json", env=before_path(pathlib.Path(sys.executable).parent)).stdout)["python"]
    assert python == {
        "path": str(pathlib.Path(sys.executable).parent / "python3"),
        "version": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "accelerate": importlib.metadata.version("accelerate"),
    }


def test_python_takes_no_module_of_the_working_directory(accel, tmp_path):
    (tmp_path / "importlib.py").write_text("print('torch 0.0.0')")
    (tmp_path / "email.py").write_text("print('torch 0.0.0')")
    python = json.loads(accel("env", "--json", cwd=tmp_path).stdout)["python"]
    assert python is None or python["torch"] != "0.0.0"


def test_gpus_as_nvidia_smi_says(accel, program):
    folder = program("nvidia-smi", "echo 'NVIDIA H100 80GB HBM3, 81559, 535.129.03'")
    environment = before_path(folder)
    found = rows(accel("env", env=environment).stdout)
    assert found["GPUs"][0] == "0: NVIDIA H100 80GB HBM3, 85.5 GB"
    assert found["NVIDIA driver"] == ["535.129.03"]
    document = json.loads(accel("env", "--json", env=environment).stdout)
    assert document["gpus"] == [{"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 81559 << 20}]


def test_nvidia_smi_that_fails_is_named(accel, program):
    folder = program("nvidia-smi", "echo 'NVIDIA-SMI has failed because it could not communicate'; exit 9")
    assert "nvidia-smi failed" in rows(accel("env", env=before_path(folder)).stdout)["GPUs"]


def test_worker_as_launch_finds_it(accel, program):
    folder = program("my-worker", "exit 0")
    document = json.loads(accel("env", "--json", env={"ACCEL_WORKER": folder / "my-worker"}).stdout)
    assert document["worker"]["path"] == str(folder / "my-worker")
    assert document["worker"]["why_not"] is None
    assert document["variables"]["ACCEL_WORKER"] == str(folder / "my-worker")


def test_useful_values_are_shown(accel):
    useful = {
        "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_ALGO": "Ring,Tree", "NCCL_P2P_LEVEL": "NVL",
        "NCCL_SOCKET_IFNAME": "^lo,docker", "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1", "NCCL_IB_TIMEOUT": "22",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "GLOO_SOCKET_IFNAME": "eth0",
        "CUDA_VISIBLE_DEVICES": "0,GPU-8f3c2f0a-1111-2222-3333-444455556666", "CUDA_LAUNCH_BLOCKING": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128", "OMP_NUM_THREADS": "8",
        "OMP_PROC_BIND": "close", "OMP_PLACES": "{0:4}:8:4",
        "KMP_AFFINITY": "granularity=fine,compact,1,0", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2", "MASTER_ADDR": "node01.example.org", "MASTER_PORT": "29500", "RANK": "3",
        "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node[01-03,7],login",
        "SLURM_TASKS_PER_NODE": "8(x2)", "SLURM_NTASKS": "16", "FSDP_SHARDING_STRATEGY": "FULL_SHARD",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer", "FSDP_VERSION": "2", "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_DYNAMO_MODE": "max-autotune", "PARALLELISM_CONFIG_DP_SHARD_SIZE": "4",
        "LD_LIBRARY_PATH": "/usr/local/cuda/lib64:/opt/miniconda3/lib", "TMPDIR": "/scratch/job-17",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "NCCL_TOPO_FILE": "/etc/nccl/topo.xml",
    }
    result = accel("env", env=useful)
    assert {f"{name}={value}" for name, value in useful.items()} <= set(rows(result.stdout)["variables"])
    variables = json.loads(accel("env", "--json", env=useful).stdout)["variables"]
    assert {name: variables.get(name) for name in useful} == useful


def test_value_of_an_unknown_variable_is_not_shown(accel, program):
    """The name decides, so that a secret of any form stays hidden, a number as well as a token."""
    names = ["SLURM_JWT", "SLURM_COMMENT", "SLURM_JOB_NAME", "ACCEL_PIN", "ACCEL_DB_PASS", "NCCL_COOKIE", "NCCL_KEY1",
             "ACCELERATE_SESSION", "FSDP_PWD", "OMP_SIGNATURE", "CUDA_X", "MASTER_KEY", "TORCHELASTIC_RUN_ID", "HF_TOKEN",
             "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "UNRELATED"]
    quick = before_path(program("python3", "echo python 3.11.2"))
    for secret in ("47114711", "hf_Zx9Kq2Lm7Wp4Rt8Yv3Bn6Hs1Jd5Fg0Qe", "https://user:hunter2@host/path"):
        result = accel("env", "--json", env={**dict.fromkeys(names, secret), **quick})
        assert secret not in result.stdout + result.stderr
        variables = json.loads(result.stdout)["variables"]
        assert variables["SLURM_JWT"] == variables["ACCEL_PIN"] == "(set, not shown)"
        assert "HF_TOKEN" not in variables


def test_value_cannot_forge_a_line(accel):
    result = accel("env", env={"NCCL_DEBUG": "INFO\nGPUs 8 \x1b[31m"})
    assert [line[15:] for line in result.stdout.splitlines() if "NCCL_DEBUG" in line] == [r"NCCL_DEBUG=INFO\nGPUs 8 \x1b[31m"]
    assert "\nGPUs 8" not in result.stdout and "\x1b" not in result.stdout


@pytest.mark.parametrize("name", ["python3", "nvidia-smi"])
def test_interrupt_ends_a_program_that_hangs(accel_path, program, tmp_path, name):
    started = tmp_path / "started"
    folder = program(name, f"echo $$ >{started}.new; mv {started}.new {started}; exec sleep 100")
    process = subprocess.Popen([accel_path, "env"], env={**os.environ, **before_path(folder)},
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=8)
    assert process.returncode == 130, err
    assert out == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
