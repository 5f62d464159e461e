"""Python programs under the launcher: torch.distributed and Accelerate initialize from its environment."""

import json
import pathlib
import sys

import pytest

PEERS = pathlib.Path(__file__).resolve().parent.parent / "interop"

SUM = """
import sys; sys.path.insert(0, sys.argv[1]); import ranks_end
import datetime, os, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print("sum", total.item(), "of", dist.get_world_size())
ranks_end.leave()
"""

STATE = """
import sys; sys.path.insert(0, sys.argv[1]); import ranks_end
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
accelerator.print("ranks", accelerator.num_processes, "precision", accelerator.mixed_precision)
ranks_end.leave()
"""


@pytest.mark.long
@pytest.mark.parametrize("libuv", [1, 0])
def test_torch_distributed(accel, libuv):
    """Both servers of torch's store may listen on the port that the launcher holds."""
    result = accel("launch", "--cpu", "--num_processes", 3, "--main_process_port", 0, "--", sys.executable, "-c", SUM, PEERS,
                   env={"USE_LIBUV": str(libuv)})
    assert result.stdout == "sum 6.0 of 3\n"


def test_accelerator(accel):
    result = accel("launch", "--cpu", "--num_processes", 2, "--main_process_port", 0, "--mixed_precision", "bf16", "--",
                   sys.executable, "-c", STATE, PEERS)
    assert result.stdout == "ranks 2 precision bf16\n"


WHO = "import os, sys; print(os.environ['RANK'], os.path.basename(sys.argv[0]), sys.argv[1:])\n"


@pytest.mark.parametrize("words", [
    ["train.py", "--x", "1"],
    ["--config_file", "c.yaml", "train.py", "--x", "1"],
    ["c.yaml", "train.py", "--x", "1"],
    ["c.yaml", "--", "train.py", "--x", "1"],
    ["c.yaml", "-m", "package.train", "--x", "1"],
    ["c.yaml", "--no_python", "./own.py", "--x", "1"],
], ids=" ".join)
def test_programs_as_people_type_them(accel, tmp_path, words):
    (tmp_path / "c.yaml").write_text("distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 2\nmain_process_port: 0\n")
    (tmp_path / "train.py").write_text(WHO)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/train.py").write_text(WHO)
    (tmp_path / "own.py").write_text(f"#!{sys.executable}\n{WHO}")
    (tmp_path / "own.py").chmod(0o755)
    env = {"HOME": str(tmp_path), "XDG_CACHE_HOME": "", "HF_HOME": ""}
    said = accel("launch", *words, env=env).stdout
    assert said == f"0 {'own' if './own.py' in words else 'train'}.py ['--x', '1']\n"


def test_the_file_of_accelerate_config_is_taken(accel, tmp_path):
    (tmp_path / "hf/accelerate").mkdir(parents=True)
    (tmp_path / "hf/accelerate/default_config.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 3\nmain_process_port: 0\n")
    (tmp_path / "train.py").write_text("import os; print(os.environ['WORLD_SIZE'])\n")
    env = {"HF_HOME": str(tmp_path / "hf")}
    result = accel("launch", "train.py", env=env)
    assert result.stdout == "3\n" and "default_config.yaml', as for accelerate launch" in result.stderr
    assert accel("launch", "--num_processes", 1, "train.py", env=env).stdout == "1\n"


def test_a_script_that_is_not_there_is_said_once(accel):
    said = accel("launch", "--cpu", "--num_processes", 2, "missing.py", code=2).stderr
    assert said.startswith("accel: error: the script 'missing.py' does not exist\n")


@pytest.mark.long
def test_accelerate_makes_no_fsdp_on_cpus_and_accel_says_so(accel, tmp_path):
    (tmp_path / "c.yaml").write_text("distributed_type: FSDP\nuse_cpu: true\nnum_processes: 2\nmain_process_port: 0\n"
                                     "fsdp_config: {fsdp_version: 2}\n")
    (tmp_path / "train.py").write_text(STATE.replace("accelerator.print(", "accelerator.print(accelerator.distributed_type, "))
    result = accel("launch", "c.yaml", "--", sys.executable, "train.py", PEERS)
    assert "DistributedType.MULTI_CPU ranks 2" in result.stdout
    assert "on CPUs Accelerate makes DistributedDataParallel of FSDP: a program" in result.stderr


@pytest.mark.long(but="broadcast3-0")
@pytest.mark.parametrize("broadcast, code", [({}, 6), ({"sync_module_states": False}, 6), ({"cpu_ram_efficient_loading": False}, 6),
                                             ({"sync_module_states": False, "cpu_ram_efficient_loading": False}, 0)])
def test_accelerate_fails_with_fsdp_1_on_cpus_and_accel_says_so(accel, tmp_path, broadcast, code):
    fsdp = {"fsdp_version": 1, **{f"fsdp_{name}": value for name, value in broadcast.items()}}
    (tmp_path / "c.yaml").write_text(json.dumps({"distributed_type": "FSDP", "use_cpu": True, "num_processes": 1,
                                                 "fsdp_config": fsdp}))
    (tmp_path / "train.py").write_text(STATE)
    said = accel("launch", "c.yaml", "--", sys.executable, "train.py", PEERS, code=code).stderr
    assert ("a program that uses Accelerate fails with FSDP 1" in said) == (code != 0)
    assert ("no available devices found, must be one of" in said) == (code != 0)
