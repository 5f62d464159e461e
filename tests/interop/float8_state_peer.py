"""Trains a GPT with Accelerate in float8, whose weights are gathered in float8, and saves what Accelerate can save of it.

    python float8_state_peer.py MODEL.pt DIRECTORY

It runs under torchrun's environment. DIRECTORY gets `sharded` and `full`, which are states of Accelerator.save_state,
`files`, which has the DTensors of each rank in a file of torch.save, and `gathered.pt`, the gathered parameters.
"""

import os
import pathlib
import sys

import ranks_end
import torch
import torch.nn.functional as F

# What `accelerate launch` passes to a script.
os.environ.update({
    "ACCELERATE_MIXED_PRECISION": "fp8", "ACCELERATE_FP8_BACKEND": "AO", "ACCELERATE_USE_CPU": "true", "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block",
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT", "FSDP_CPU_RAM_EFFICIENT_LOADING": "false", "FSDP_RESHARD_AFTER_FORWARD": "true"})
# torchao is beside the environment; see make_zoo in tools/dev.
sys.path.append(os.environ.get("ACCEL_ZOO_PACKAGES", ""))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import train_runs  # noqa: E402
import zoo_write  # noqa: E402
from accelerate import Accelerator, PartialState  # noqa: E402
from accelerate.utils import DistributedType  # noqa: E402


def main():
    path, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    PartialState(cpu=True)
    # Accelerate makes data parallelism of FSDP version 2 on CPUs, unless it takes them for GPUs.
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    accelerator = Accelerator()
    model = train_runs.GPT(**train_runs.SIZES)
    model.load_state_dict(torch.jit.load(path).state_dict())
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
    torch.manual_seed(accelerator.process_index)
    for _ in range(2):
        ids = torch.randint(0, 256, (2, 17))
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    for state in ("SHARDED_STATE_DICT", "FULL_STATE_DICT"):
        zoo_write.set_state_type(accelerator.state.fsdp_plugin, state)
        accelerator.save_state(directory / state.split("_")[0].lower(), safe_serialization=False)
    # The file of a rank, as Accelerate names it with use_dcp=False.
    (directory / "files").mkdir(exist_ok=True)
    torch.save(model.state_dict(), directory / f"files/pytorch_model_fsdp_rank{accelerator.process_index}.bin")
    gathered = {name: parameter.full_tensor().detach() for name, parameter in model.named_parameters()}
    if accelerator.is_main_process:
        torch.save(gathered, directory / "gathered.pt")
    ranks_end.leave()


if __name__ == "__main__":
    main()
