"""The launcher gives its workers the environment that torchrun and accelerate launch give theirs."""

import json
import os
import subprocess
import sys

import ports
import pytest

# The values of these differ by launcher. accel names the run, keeps error files elsewhere, and rank 0 hosts the store.
DIFFERENT = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS"}
# Only accel sets PYTHONUNBUFFERED, for Python programs, and names its record. A Python program may set LC_CTYPE itself.
OURS = {"PYTHONUNBUFFERED", "LC_CTYPE", "ACCEL_FLIGHT_RECORD"}
# Only the Python launchers set the first variable.
THEIRS = {"ACCELERATE_LAUNCH_PARAMS", "LC_CTYPE"}

DUMP = """
import json, os, sys
with open(f"{sys.argv[1]}.{os.environ.get('RANK', 0)}", "w") as out: json.dump(dict(os.environ), out)
"""


@pytest.fixture
def environment():
    """A minimal environment of the machine, without a variable of any launcher."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}


@pytest.fixture
def dump(tmp_path):
    (tmp_path / "dump.py").write_text(DUMP)

    def added(command, name, environment, ranks=2):
        """Returns the variables that a launcher adds or changes, by rank."""
        subprocess.run(list(map(str, command)), cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=120)
        documents = [json.loads((tmp_path / f"{name}.{rank}").read_text()) for rank in range(ranks)]
        return [{k: v for k, v in d.items() if environment.get(k) != v} for d in documents]

    return added


def test_as_torchrun(dump, accel_path, environment, free_port):
    theirs = dump([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", 2, "--master_addr", "127.0.0.1",
                   "--master_port", free_port, "dump.py", "theirs"], "theirs", environment)
    ours = dump([accel_path, "launch", "--cpu", "--num_processes", 2, "--main_process_port", free_port, "--",
                 sys.executable, "dump.py", "ours"], "ours", environment)
    for rank in (0, 1):
        names = {name for name in ours[rank] if not name.startswith("ACCELERATE_")}
        assert names - OURS == set(theirs[rank]) - THEIRS
        for name in names - OURS - DIFFERENT:
            assert ours[rank][name] == theirs[rank][name], name
        assert ours[rank]["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    assert ours[0]["TORCHELASTIC_RUN_ID"] == ours[1]["TORCHELASTIC_RUN_ID"]
    assert ours[0]["TORCHELASTIC_ERROR_FILE"] != ours[1]["TORCHELASTIC_ERROR_FILE"]


@pytest.mark.parametrize("version", [1, 2])
def test_as_accelerate(dump, accel_path, environment, free_port, tmp_path, version):
    strategy = "SHARD_GRAD_OP" if version == 1 else "false"
    (tmp_path / "fsdp.yaml").write_text(f"""
compute_environment: LOCAL_MACHINE
debug: true
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_offload_params: true
  fsdp_reshard_after_forward: {strategy}
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: Block,Head
  fsdp_version: {version}
machine_rank: 0
main_process_port: {free_port}
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
""")
    theirs = dump([sys.executable, "-m", "accelerate.commands.launch", "--config_file", "fsdp.yaml", "dump.py", "theirs"],
                  "theirs", environment)
    ours = dump([accel_path, "launch", "fsdp.yaml", "--", sys.executable, "dump.py", "ours"], "ours", environment)
    prefixes = ("ACCELERATE_", "FSDP_", "MASTER_", "PARALLELISM_")
    for rank in (0, 1):
        names = {name for name in ours[rank] if name.startswith(prefixes)}
        assert names == {name for name in theirs[rank] if name.startswith(prefixes)}
        for name in names:
            assert ours[rank][name] == theirs[rank][name], name


def test_set_variables_stay(accel):
    result = accel("launch", "--cpu", "--", "bash", "-c", "echo $OMP_NUM_THREADS $TORCH_NCCL_ASYNC_ERROR_HANDLING",
                   env={"OMP_NUM_THREADS": "5", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"})
    assert result.stdout == "5 0\n"


@pytest.fixture
def free_port():
    with ports.held_port() as port:
        yield port


@pytest.mark.long
def test_a_program_that_runs_by_itself_has_no_place_in_a_world(dump, accel_path, environment, tmp_path):
    """Accelerate makes DistributedDataParallel of a program that has one."""
    (tmp_path / "c.yaml").write_text("distributed_type: 'NO'\nuse_cpu: true\nnum_processes: 1\n")
    [ours] = dump([accel_path, "launch", "c.yaml", "--", sys.executable, "dump.py", "ours"], "ours", environment, ranks=1)
    [theirs] = dump([sys.executable, "-m", "accelerate.commands.launch", "--config_file", "c.yaml", "dump.py", "theirs"], "theirs",
                    environment, ranks=1)
    for found in (ours, theirs):
        assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"} & set(found)
    for name in {"ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU"} & set(theirs):
        assert ours[name] == theirs[name], name
