"""Makes one checkpoint of each kind, so small that thousands of changed copies are read in a minute."""

import dataclasses
import pathlib
import subprocess
import sys

import reading
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))
import train_runs  # noqa: E402


@dataclasses.dataclass
class Source:
    kind: str  # A key of reading.READERS.
    path: pathlib.Path  # The directory. Every file in it belongs to the checkpoint.
    entry: str  # The path that the commands get, relative to `path`; "" for the directory itself.
    has_sums: bool  # Whether checksums reveal a changed byte of data.
    expected: dict = dataclasses.field(default_factory=dict)


def small_state():
    generator = torch.Generator().manual_seed(3)
    return {"a.weight": torch.rand(40, 30, generator=generator), "a.bias": torch.rand(40, generator=generator),
            "b.weight": torch.rand(30, 20, generator=generator).bfloat16(), "steps": torch.tensor(7)}


def module():
    module = torch.nn.Module()
    module.a = torch.nn.Linear(30, 40)
    module.b = torch.nn.Linear(20, 30, bias=False, dtype=torch.bfloat16)
    module.register_buffer("steps", torch.tensor(0))
    module.load_state_dict(small_state())
    return module


def make(accel: pathlib.Path, directory: pathlib.Path) -> list[Source]:
    state = small_state()

    def command(*words):
        subprocess.run([accel, *map(str, words)], check=True, capture_output=True)

    def at(name):
        (directory / name).mkdir(parents=True)
        return directory / name

    torch.save(state, at("torch") / "model.bin")
    torch.save(state, at("old-torch") / "model.bin", _use_new_zipfile_serialization=False)
    save_file(state, at("safetensors") / "model.safetensors")
    torch.jit.script(module()).save(str(at("script") / "model.pt"))
    dcp.save({"model": state}, storage_writer=dcp.FileSystemWriter(at("dcp"), thread_count=2), no_dist=True)
    command("save", directory / "torch/model.bin", directory / "sharded", "--type", "sharded", "--ranks", 2)
    command("save", directory / "torch/model.bin", directory / "local", "--type", "local", "--ranks", 2)
    command("merge-weights", directory / "dcp", directory / "indexed", "--max-shard-size", "2000B")
    trained = at("trained")
    train_runs.export(trained / "gpt.pt", layers=1, width=16)
    config = train_runs.config(trained, max_steps=1, checkpoint={"every": 1, "resume": "none"})
    command("launch", config)
    (trained / "out/checkpoints/checkpoint_1").rename(directory / "checkpoint")
    sources = [
        Source("torch", directory / "torch", "model.bin", True),
        Source("safetensors", directory / "safetensors", "model.safetensors", False),
        Source("script", directory / "script", "model.pt", True),
        Source("dcp", directory / "dcp", "", True),
        Source("dcp", directory / "sharded", "pytorch_model_fsdp_0", True),
        Source("local", directory / "local", "", True),
        Source("indexed", directory / "indexed", "", False),
        Source("dcp", directory / "checkpoint", "pytorch_model_fsdp_0", True),
    ]
    for source in sources:
        source.expected = reading.read(source.kind, source.path / source.entry)
        assert isinstance(source.expected, dict) and source.expected, (source, source.expected)
    return sources
