"""The ready configurations train: on this machine, on the CPU, with the model and data of the tests in place of their own."""

import pathlib

import pytest
import torch
import train_runs

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
HERE = ["--cpu", "--mixed-precision", "no", "--num-machines", 1, "--main-process-ip", "127.0.0.1", "--main-process-port", 0]
# What a configuration needs to fit this machine, and what it is told to be.
RANKS = {"hybrid": [4, "parallelism_config.parallelism_config_dp_shard_size=2"], "one_gpu": [1], "ddp": [2, "distributed_type=MULTI_CPU"]}


def names():
    with_a_model = {"quickstart", "digits"}  # Their models and data are those of examples/.
    return sorted({path.stem for path in CONFIGS.glob("*.yaml")} - with_a_model)


@pytest.mark.long(but="cpu")
@pytest.mark.parametrize("name", names())
def test_a_ready_configuration_trains(accel, tmp_path, name):
    model = train_runs.export(tmp_path / "gpt.pt")
    (tmp_path / "data").mkdir()
    text = torch.frombuffer(bytearray(train_runs.TEXT.read_bytes()), dtype=torch.uint8)
    text.to(torch.int32).numpy().astype("<u2").tofile(tmp_path / "data/train.bin")
    train_runs.export_pt2(tmp_path / "model.pt2", model)
    ranks, *settings = RANKS.get(name, [2])
    settings += ["training.data.train.sequence_length=16", "training.data.train.dtype=uint16", "training.max_steps=3",
                 "training.model.weights=gpt.pt", "training.checkpoint.every=0", "training.log_every=1"]
    if "fsdp_config:" in (CONFIGS / f"{name}.yaml").read_text():
        settings.append("fsdp_config.fsdp_transformer_layer_cls_to_wrap=Block")
    flags = [word for setting in settings for word in ("--set", setting)]
    accel("launch", CONFIGS / f"{name}.yaml", *HERE, "--num-processes", ranks, *flags)
    assert len(train_runs.metrics(tmp_path)) == 3
