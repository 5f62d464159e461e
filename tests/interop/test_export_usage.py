"""What is given wrongly to accel-export and to accel_export.export: one message that says what to do, and no traceback."""

import json
import os
import re
import socket
import subprocess
import sys

import accel_export
import pytest
import torch
import transformers
from accel_export import cli
from train_runs import ROOT

LLAMA = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 96, "max_position_embeddings": 64}


@pytest.fixture
def no_network(monkeypatch):
    asked = []

    def refuse(host, *arguments, **more):
        asked.append(host)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    yield
    assert not asked


@pytest.mark.parametrize("directory, flags, said", [
    ("hf/absent", [], "hf/absent' does not exist\nhint: MODEL_DIRECTORY is a directory of this machine"),
    ("./no-such-model", [], "does not exist\nhint"),
    ("hf/config.json", [], "config.json' is not a directory\nhint"),
    ("hf", ["--weights", "--peft", "nobody/lora"], "--peft: 'nobody/lora' does not exist\nhint"),
    ("hf", ["--weights", "--peft", "hf"], "hf/adapter_config.json' does not exist\nhint"),
    ("hf", ["--weights", "--peft", "broken_adapter"], "--peft: reading the adapter_config.json of 'broken_adapter' fails"),
    ("hf", ["--weights", "--peft", "other_adapter"], "--peft: adding the adapter of 'other_adapter' fails"),
    ("empty", [], "reading config.json fails"),
    ("broken", [], "reading config.json fails"),
    ("foreign", [], "by accel_export.export"),
    ("hf", ["--set", "hidden_size=many"], "config.json"),
    ("hf", ["--set", "vocab_size=-5"], "config.json"),
    ("hf", ["--weights"], "reading the weights fails"),
    ("garbage", ["--weights"], "reading the weights fails"),
    ("hf", ["--inputs", "words"], "no example of the input 'words' is known"),
    ("hf", ["--accel", "/no/such/accel"], "name the program with --accel PROGRAM"),
    ("hf", ["--layers", "Layer"], "--layers names 'Layer'"),
])
def test_what_the_user_gives_wrongly_is_said(no_network, accel_path, tmp_path, monkeypatch, capsys, directory, flags, said):
    monkeypatch.chdir(tmp_path)
    config = transformers.AutoConfig.for_model("llama", **LLAMA)
    for name in ("hf", "garbage"):
        config.save_pretrained(name)
    (tmp_path / "garbage/model.safetensors").write_bytes(b"not a header")
    for name, text in {"empty": None, "broken": "{", "foreign": json.dumps(
            {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.Own"}})}.items():
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "config.json").write_text(text)
    for name, text in {"broken_adapter": "{", "other_adapter": json.dumps(
            {"peft_type": "LORA", "r": 4, "target_modules": ["query_key_value"], "task_type": "CAUSAL_LM"})}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(text)
    if "--peft" in flags:
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained("hf")
    accel = [] if "--accel" in flags else ["--accel", str(accel_path)]
    capsys.readouterr()  # What save_pretrained shows.
    with pytest.raises(SystemExit) as end:
        cli.main([directory, "out/model.pt2", *accel, *flags])
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("accel-export: ") and said in err and "Traceback" not in err
    assert not (tmp_path / "out/model.pt2").exists()


@pytest.mark.long
@pytest.mark.parametrize("out, said", [
    ("hf/config.json/model.pt2", "cannot be written"), ("hf", "'hf' is a directory"), ("hf/config.json", "add --overwrite")])
def test_a_place_where_no_file_can_be_written_is_named(accel_path, tmp_path, out, said):
    transformers.AutoConfig.for_model("llama", **LLAMA).save_pretrained(tmp_path / "hf")
    done = subprocess.run([sys.executable, "-m", "accel_export", "hf", out, "--accel", accel_path], cwd=tmp_path,
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "tools/export")})
    assert done.returncode == 2 and said in done.stderr and "\nhint: " in done.stderr
    assert "Traceback" not in done.stderr


# The Python API.

class Layer(torch.nn.Module):
    def __init__(self, act):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.act = act

    def forward(self, x):
        return x + self.act(self.linear(x))


class Own(torch.nn.Module):
    def __init__(self, act=torch.nn.functional.gelu):
        super().__init__()
        self.tokens = torch.nn.Embedding(16, 8)
        self.layers = torch.nn.ModuleList([Layer(act) for _ in range(2)])

    def forward(self, ids, scale):
        x = self.tokens(ids) * scale[:, None, None]
        for layer in self.layers:
            x = layer(x)
        return {"hidden": x, "mean": x.mean()}


EXAMPLE = (torch.randint(16, (2, 12), generator=torch.Generator().manual_seed(0)), torch.tensor([0.5, 2.0]))


def counts(x):
    return x * x.shape[1] if x.shape[1] > 13 else x


@pytest.mark.parametrize("arguments, said", [
    ({"path": "there.pt2"}, "add overwrite=True"),
    ({"accel": "/no/such/accel"}, "name the program with accel=PROGRAM, or leave the comparison out with check=False"),
    ({"layers": ["Layr"]}, "layers names 'Layr', and the model has no module of this class"),
    ({"model": torch.nn.Linear(8, 8), "example_inputs": torch.zeros(2, 8)}, 'with layers=["CLASS"], or say layers=[]'),
    ({"outputs": ["logits"]}, "the model gives no output 'logits'; it gives hidden, mean\nhint: see outputs"),
    ({"model": Own(counts), "path": "own.pt"}, 'say so with accept=["FILE:LINE"]'),
    ({"lengths": ["words"]}, "lengths names 'words', and the inputs have the dimensions batch, length"),
    ({"dims": {"idz": ("batch", "length")}}, "dims names the input 'idz', and example_inputs has ids, scale"),
    ({"dims": {"ids": ("batch",)}}, "dims gives 'ids' 1 dimensions, and its example has 2"),
    ({"example_inputs": {"words": EXAMPLE[0]}}, "example_inputs names 'words', and forward takes ids, scale"),
    ({"example_inputs": (EXAMPLE[0], 0.5)}, "example_inputs: 'scale' is a float"),
    ({"example_inputs": (EXAMPLE[0], torch.ones(3))}, "example_inputs: dimension 'batch' has size 2 in one input and 3 in 'scale'"),
    ({"format": "onnx"}, "format is 'onnx'; expected 'pt2', 'torchscript' or None"),
    ({"dtype": "bfloat16"}, "dtype is 'bfloat16'; expected torch.float32"),
    ({"weights": False, "path": "own.pt"}, "weights=False: the structure alone of a model of your own is written as .pt2"),
])
def test_the_python_api_names_its_own_arguments(accel_path, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.pt2").write_text("mine")
    given = {"model": Own(), "example_inputs": EXAMPLE, "path": "own.pt2", "accel": accel_path, **arguments}
    with pytest.raises(accel_export.Refused) as refused:
        accel_export.export(given.pop("model"), given.pop("example_inputs"), given.pop("path"), **given)
    assert said in str(refused.value) and not re.search(r"--[a-z]", str(refused.value))
    assert [path.name for path in tmp_path.iterdir()] == ["there.pt2"]


def test_a_length_of_ones_own_name_is_given_by_it(accel_path, tmp_path):
    def unrolls(x):
        return torch.stack([x[:, i] for i in range(x.shape[1])], 1)

    with pytest.raises(accel_export.Refused, match=r'give it: lengths=\["words"\]'):
        accel_export.export(Own(unrolls), EXAMPLE, tmp_path / "own.pt2", accel=accel_path, dims={"ids": ("batch", "words")})
