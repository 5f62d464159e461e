"""Scripts of Accelerate's users run under `accel launch CONFIG -- python ...`."""

import json
import os
import pathlib
import re
import subprocess
import sys

import ports
import pytest

RANKS_END = pathlib.Path(__file__).resolve().parent.parent / "interop/ranks_end.py"

CONFIG = """
distributed_type: {kind}
use_cpu: true
num_machines: 1
num_processes: 2
machine_rank: 0
mixed_precision: 'no'
"""

# The script says nothing of ranks: all of it comes from the launcher's environment.
TRAINING = """
import json, sys, torch
sys.path.insert(0, sys.argv[2])
import ranks_end
from accelerate import Accelerator
from torch.nn.parallel import DistributedDataParallel

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.linear(x))

torch.manual_seed(0)
torch.set_num_threads(1)
accelerator = Accelerator()
model = torch.nn.Sequential(Layer(), Layer(), torch.nn.Linear(8, 1))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
assert isinstance(model, DistributedDataParallel)  # Accelerate has FSDP on GPUs alone.
torch.manual_seed(accelerator.process_index)
losses = []
for _ in range(5):
    x = torch.randn(4, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(accelerator.gather(loss.detach().reshape(1)).tolist())
if accelerator.is_main_process:
    open(sys.argv[1], "w").write(json.dumps(losses))
ranks_end.leave()
"""


def config(directory, kind):
    path = directory / "config.yaml"
    path.write_text(CONFIG.format(kind=kind))
    return path


@pytest.mark.long
@pytest.mark.parametrize("script, said", [
    ("test_cli", "Successfully ran on 0 GPUs"), ("test_sync", "Distributed `no_sync` context manager"),
    ("test_script", "Num processes: 2"),
])
def test_accelerates_own_scripts(accel, tmp_path, script, said):
    run = accel("launch", config(tmp_path, "MULTI_CPU"), "--", sys.executable, RANKS_END,
                f"accelerate.test_utils.scripts.{script}")
    assert said in run.stdout
    if script == "test_script":
        assert "DistributedType.MULTI_CPU  Backend: gloo" in run.stdout
        assert not re.search(r"\b(Traceback|FAILED)\b", run.stdout + run.stderr)


def test_a_training_by_accelerator(accel, tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    file = config(tmp_path, "MULTI_CPU")
    accel("launch", file, "--", sys.executable, tmp_path / "train.py", tmp_path / "ours.json", RANKS_END.parent)
    # On CPUs `accelerate launch` starts one process, so torchrun is the peer.
    # Addresses as numbers, since not every machine resolves its own name.
    with ports.held_port() as port:
        run = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1",
                              f"--master-port={port}", tmp_path / "train.py", tmp_path / "theirs.json", RANKS_END.parent],
                             stderr=subprocess.PIPE, text=True, timeout=120,
                             env={**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
    assert run.returncode == 0, run.stderr
    ours, theirs = (json.loads((tmp_path / name).read_text()) for name in ("ours.json", "theirs.json"))
    assert ours == theirs and ours[-1] < ours[0]
