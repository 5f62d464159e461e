"""The input files for the tests of commands that write."""

import subprocess

import pytest


@pytest.fixture(scope="session")
def fault_template(accel_path, tmp_path_factory):
    """Returns a directory with the inputs. `src` is a sharded checkpoint of two files, written by torch. `model.pt` is
    a TorchScript model with the same parameters. `lost` is `src` as accel saves it, without .metadata."""
    import torch
    import torch.distributed.checkpoint as dcp

    directory = tmp_path_factory.mktemp("template")
    generator = torch.Generator().manual_seed(0)
    model = {
        "a.weight": torch.rand(40, 30, generator=generator),
        "a.bias": torch.rand(40, generator=generator),
        "b.weight": torch.rand(30, 20, generator=generator).bfloat16(),
        "steps": torch.tensor(7),
    }
    writer = dcp.FileSystemWriter(directory / "src", thread_count=2)
    (directory / "assets").mkdir()
    (directory / "assets/config.json").write_text("{}")
    (directory / "assets/tokenizer.json").write_text("{}")
    dcp.save({"model": model}, storage_writer=writer, no_dist=True)
    module = torch.nn.Module()
    module.a = torch.nn.Linear(30, 40)
    module.b = torch.nn.Linear(20, 30, bias=False, dtype=torch.bfloat16)
    module.register_buffer("steps", torch.tensor(0))
    torch.jit.script(module).save(directory / "model.pt")
    command = [accel_path, "save", directory / "src", directory / "whole", "--type", "sharded", "--ranks", "2"]
    subprocess.run(command, check=True, capture_output=True)
    (directory / "whole/pytorch_model_fsdp_0").rename(directory / "lost")
    (directory / "lost/.metadata").unlink()
    (directory / "whole").rmdir()
    return directory
