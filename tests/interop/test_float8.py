"""Float8 linears against torchao's in Python: the same losses, step by step, and the same weights after 20 steps, bit for
bit. Accelerate chooses the linears of the peer."""

import json
import os
import sys

import pytest
import torch
from safetensors.torch import load_file

import train_runs
from pt2_models import FREE, export, language_model

pytestmark = pytest.mark.long

# torchao is beside the environment; see make_zoo in tools/dev.
sys.path.append(os.environ.get("ACCEL_ZOO_PACKAGES", ""))
pytest.importorskip("torchao.float8", reason="torchao is not installed")

BITS = {"optimizer": {"type": "adamw", "lr": 3e-3, "weight_decay": 0.1}, "lr_scheduler": {"type": "constant"},
        "max_grad_norm": None}
NO = {"distributed_type": "NO"}
MULTI_CPU = {"distributed_type": "MULTI_CPU"}
VERSION_1 = {"fsdp_config.fsdp_version": 1}
VERSION_2 = {"fp8_config": {"enable_fsdp_float8_all_gather": False}}
CHECKPOINTING = {"fsdp_config.fsdp_activation_checkpointing": True}
# The linears of the model of train_runs without the first and the last.
CONVERTED = ["blocks.0.attention.proj", "blocks.0.up", "blocks.0.down", "blocks.1.attention.qkv", "blocks.1.attention.proj",
             "blocks.1.up", "blocks.1.down"]


def config_of(directory, processes, steps, **options):
    """The configuration of a run in float8. `fp8_config` and `mixed_precision` are sections of their own."""
    fp8 = options.pop("fp8_config", None)
    path = train_runs.config(directory, processes, **{"mixed_precision": "fp8", **BITS, "max_steps": steps,
                                                      "checkpoint.every": steps, **options})
    if fp8 is not None:
        document = json.loads(path.read_text())
        path.write_text(json.dumps({**document, "fp8_config": fp8}))
    return path


def reference(peer, directory, processes, kind, **options):
    spec = {"model": train_runs.SIZES, "path": str(directory / "gpt.pt"), "data": str(train_runs.TEXT), "batch_size": 4,
            "accumulate": 1, "lr": 3e-3, "recipe": "tensorwise", "kind": kind, "recompute": False, "replicas": 1,
            "reshard": True, "gather": False, "max_norm": None, "out": str(directory / "reference.pt"), **options}
    (directory / "spec.json").write_text(json.dumps(spec))
    peer(processes, "float8_peer.py", directory / "spec.json")
    return torch.load(directory / "reference.pt", weights_only=True)


def weights_of(accel, directory, step):
    accel("merge-weights", directory / f"out/checkpoints/checkpoint_{step}", directory / "merged")
    return load_file(directory / "merged/model.safetensors")


def require_equal(accel, directory, theirs, steps):
    ours = train_runs.metrics(directory)
    print(f"largest difference of the loss {max(abs(a - b) for a, b in zip(ours, theirs['loss'])):.1e}")
    assert len(ours) == steps and ours == pytest.approx(theirs["loss"], abs=1e-12)
    assert theirs["loss"][-1] < theirs["loss"][0] - 0.05 * steps
    weights = weights_of(accel, directory, steps)
    assert theirs["weights"].keys() <= weights.keys() <= theirs["weights"].keys() | {"head.weight"}  # It is tied.
    for key, value in theirs["weights"].items():
        assert torch.equal(weights[key], value), f"{key}: {(weights[key] - value).abs().max().item():.1e}"


CASES = {
    # name: (ranks, steps, options of accel, kind and options of the peer)
    "one process": (1, 20, NO, "autocast", {}),
    "DDP, accumulation": (2, 6, {**MULTI_CPU, "gradient_accumulation_steps": 2}, "autocast", {"accumulate": 2}),
    "version 1": (2, 6, VERSION_1, "fsdp1", {}),
    "version 2": (2, 20, VERSION_2, "fsdp2", {}),
    "version 2, checkpointing, accumulation": (
        2, 6, {**VERSION_2, **CHECKPOINTING, "gradient_accumulation_steps": 2}, "fsdp2", {"recompute": True, "accumulate": 2}),
    "HYBRID, 2 x 2": (4, 4, {**VERSION_2, "parallelism_config.dp_shard_size": 2}, "fsdp2", {"replicas": 2}),
    "rowwise, one process": (1, 6, {**NO, "float8.recipe": "rowwise"}, "autocast", {"recipe": "rowwise"}),
    "rowwise, version 2": (2, 6, {**VERSION_2, "float8.recipe": "rowwise"}, "fsdp2", {"recipe": "rowwise"}),
    "rowwise_with_gw_hp, version 2": (
        1, 6, {**VERSION_2, "float8.recipe": "rowwise_with_gw_hp"}, "fsdp2", {"recipe": "rowwise_with_gw_hp"}),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_and_weights_equal_torchaos(accel, peer, tmp_path, name):
    """Bit for bit: no norm of the gradients scales them, whose sum has another order in Python."""
    processes, steps, options, kind, spec = CASES[name]
    train_runs.export(tmp_path / "gpt.pt")
    run = accel("launch", config_of(tmp_path, processes, steps, **options))
    assert "7 of 9 linears compute in float8" in run.stderr
    theirs = reference(peer, tmp_path, processes, kind, steps=steps, **spec)
    assert theirs["converted"] == CONVERTED
    require_equal(accel, tmp_path, theirs, steps)


def test_a_filter_an_evaluation_and_clipping(accel, peer, tmp_path):
    """The same steps of a traced model and of one of torch.export are bit-equal to those of the scripted one."""
    model = train_runs.export(tmp_path / "gpt.pt")
    held_out = tmp_path / "held_out.txt"
    held_out.write_bytes(train_runs.TEXT.read_bytes()[:32 * 14 + 1])
    options = {**NO, "float8.filter": ["attention", "1.up", "head"], "max_grad_norm": 1.0, "eval_every": 6,
               "data.eval": {"format": "text", "path": str(held_out), "sequence_length": 32}}
    run = accel("launch", config_of(tmp_path, 1, 6, **options))
    assert "3 of 9 linears compute in float8" in run.stderr
    ours = {key: train_runs.metrics(tmp_path, key) for key in ("loss", "grad_norm", "eval_loss")}
    theirs = reference(peer, tmp_path, 1, "autocast", steps=6, filter=options["float8.filter"], max_norm=1.0)
    assert theirs["converted"] == ["blocks.0.up", "blocks.0.down", "blocks.1.down"]
    assert ours["loss"][0] == pytest.approx(theirs["loss"][0], abs=1e-12)
    # The squares of float32 gradients are added up in another order, so that later weights may differ in a bit.
    assert ours["grad_norm"][0] == pytest.approx(theirs["grad_norm"][0], rel=1e-5)
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-2)
    assert ours["eval_loss"] == [pytest.approx(theirs["eval_loss"], rel=1e-2)]

    # A head that computes in float8 is not computed with its loss.
    config = config_of(tmp_path, 1, 1, **NO, **{"float8.filter": ["attention"], "model.fused_head": "always",
                                           "output_dir": str(tmp_path / "refused")})
    assert "'head' computes in float8" in accel("launch", config, code=6).stderr

    train_runs.export_pt2(tmp_path / "gpt.pt2", model)
    torch.jit.trace(model, torch.zeros(4, 32, dtype=torch.long)).save(str(tmp_path / "traced.pt"))
    for file in ("gpt.pt2", "traced.pt"):
        accel("launch", config_of(tmp_path, 1, 6, **options, **{"model.path": str(tmp_path / file),
                                                                "output_dir": str(tmp_path / file.replace(".", "_") / "out")}))
        assert {key: train_runs.metrics(tmp_path / file.replace(".", "_"), key) for key in ours} == ours


def test_evaluation_computes_in_float8(accel, peer, tmp_path):
    """The held-out loss of the first weights, which no step has changed."""
    train_runs.export(tmp_path / "gpt.pt")
    held_out = tmp_path / "held_out.txt"
    held_out.write_bytes(train_runs.TEXT.read_bytes()[:32 * 14 + 1])
    config = config_of(tmp_path, 1, 1, **NO, **{"data.eval": {"format": "text", "path": str(held_out), "sequence_length": 32}})
    results = [json.loads(accel("--json", "evaluate", config, "--mixed-precision", precision).stdout)["results"][0]["loss"]
               for precision in ("fp8", "bf16")]
    theirs = reference(peer, tmp_path, 1, "autocast", steps=0)
    assert results[0] == pytest.approx(theirs["eval_loss"], abs=1e-12)
    assert abs(results[1] - theirs["eval_loss"]) > 1e-6


@pytest.mark.parametrize("options", [{**VERSION_2, "gradient_accumulation_steps": 2}, {}, VERSION_1],
                         ids=["version 2", "gathered in float8", "version 1"])
def test_a_run_that_goes_on_is_the_same_run(accel, tmp_path, options):
    train_runs.export(tmp_path / "gpt.pt")
    accel("launch", config_of(tmp_path, 2, 6, **options, max_grad_norm=1.0))
    whole, losses = weights_of(accel, tmp_path, 6), train_runs.metrics(tmp_path)
    (tmp_path / "out").rename(tmp_path / "whole")
    (tmp_path / "merged").rename(tmp_path / "merged_whole")
    config = config_of(tmp_path, 2, 3, **options, **{"max_grad_norm": 1.0, "checkpoint.resume": "auto"})
    accel("launch", config)
    accel("launch", config, "--set", "training.max_steps=6")
    assert train_runs.metrics(tmp_path) == losses
    resumed = weights_of(accel, tmp_path, 6)
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())


def test_a_model_without_such_a_linear_says_so_and_computes_in_bfloat16(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt", width=40)  # 40 is no multiple of 16.
    config = config_of(tmp_path, 1, 3, **NO)
    said = "nothing computes in float8: of the model's 9 linears none is chosen"
    for command in ("check", "plan", "launch"):
        run = accel(command, config)
        assert said in run.stderr + run.stdout
    losses = train_runs.metrics(tmp_path)
    (tmp_path / "out").rename(tmp_path / "float8")
    assert said not in accel("launch", config, "--mixed-precision", "bf16").stderr
    assert train_runs.metrics(tmp_path) == losses
    wrong = ("--set", "training.float8.filter=[no_such]")
    for command in ("check", "launch", "plan"):
        err = accel(command, config, *wrong, code=2).stderr
        assert "'training.float8.filter': the name of no linear of the model contains 'no_such'" in err
        assert ("--set training.float8.filter=[no_such]: " in err) == (command != "plan")


class Unordered(torch.nn.Module):
    """Calls its linears in another order than it has them, one of them twice, and has one of a derived class."""

    def __init__(self):
        super().__init__()
        self.late = torch.nn.Linear(32, 32)
        self.tokens = torch.nn.Embedding(256, 32)
        self.odd = torch.nn.Linear(32, 24)
        self.early = torch.nn.Linear(32, 32)
        self.nested = torch.nn.Sequential(torch.nn.modules.linear.NonDynamicallyQuantizableLinear(32, 48), torch.nn.GELU(),
                                          torch.nn.Linear(48, 32))
        self.back = torch.nn.Linear(24, 256)
        self.bias = torch.nn.Linear(32, 32)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.early(self.bias(self.tokens(input_ids)))
        return self.back(self.odd(self.late(self.early(x) + self.nested(x))))


@pytest.mark.parametrize("way", ["scripted", "exported", "transformers"])
def test_accelerate_chooses_the_same_linears(accel, tmp_path, way):
    """In a model of torch.export, too, whose record has the calls of the modules and not the modules."""
    from accelerate.utils.ao import convert_model_to_fp8_ao
    from torchao.float8.float8_linear import Float8Linear

    torch.manual_seed(0)
    model = language_model("llama", {}) if way == "transformers" else Unordered()
    path = tmp_path / ("model.pt" if way == "scripted" else "model.pt2")
    linears = sum(isinstance(module, torch.nn.Linear) for module in model.modules())
    if way == "scripted":
        torch.jit.script(model).save(str(path))
    else:
        export(model.train(), path, torch.zeros(2, 16, dtype=torch.long), dynamic=FREE)
    config = config_of(tmp_path, 1, 1, **NO, **{"model.path": str(path)})
    ours = [linear["module"] for linear in json.loads(accel("--json", "plan", config).stdout)["linears"] if linear["float8"]]
    assert f"{len(ours)} of {linears} linears compute in float8" in accel("launch", config).stderr
    convert_model_to_fp8_ao(model)
    assert ours == [name for name, module in model.named_modules() if isinstance(module, Float8Linear)] != []


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(32, 48), torch.nn.Linear(48, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Repeated(torch.nn.Module):
    """Calls modules by several names. In `kind` the repeated module is a linear, the first linear, or a block."""

    def __init__(self, kind: str):
        super().__init__()
        self.tokens = torch.nn.Embedding(256, 32)
        self.a = torch.nn.Linear(32, 32)
        self.b = self.a if kind == "first" else torch.nn.Linear(32, 32)
        self.c = torch.nn.Linear(32, 32)
        self.d = self.b if kind == "linear" else torch.nn.Linear(32, 32)
        block = Block()
        self.blocks = torch.nn.Sequential(block, Block(), block if kind == "block" else Block())
        self.more = torch.nn.Sequential(Block(), self.blocks[0] if kind == "block" else Block())
        self.head = torch.nn.Linear(32, 256)
        self.last = self.c if kind == "linear" else torch.nn.Identity()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.d(self.c(self.b(self.a(self.tokens(input_ids)))))
        return self.head(self.last(self.more(self.blocks(x))))


@pytest.mark.parametrize("kind", ["linear", "first", "block"])
@pytest.mark.parametrize("suffix", ["pt", "pt2"])
def test_a_module_with_several_names_counts_once(accel, tmp_path, kind, suffix):
    """torchao replaces the attributes that named_children() comes to, and the others keep the linear."""
    from accelerate.utils.ao import convert_model_to_fp8_ao
    from torchao.float8.float8_linear import Float8Linear

    torch.manual_seed(0)
    model = Repeated(kind)
    path = tmp_path / f"model.{suffix}"
    if suffix == "pt":
        torch.jit.script(model).save(str(path))
    else:
        export(model.train(), path, torch.zeros(2, 16, dtype=torch.long), dynamic=FREE)
    config = config_of(tmp_path, 1, 1, **NO, **{"model.path": str(path)})
    linears = json.loads(accel("--json", "plan", config).stdout)["linears"]
    total = sum(isinstance(module, torch.nn.Linear) for module in model.modules())
    assert f" of {total} linears compute in float8" in accel("launch", config).stderr
    convert_model_to_fp8_ao(model)
    theirs = [name for name, module in model.named_modules(remove_duplicate=False) if isinstance(module, Float8Linear)]
    assert [linear["module"] for linear in linears if linear["float8"]] == theirs != []


class Dense(torch.nn.Linear):
    pass


def test_a_linear_whose_class_has_another_name_is_named(accel, tmp_path):
    """The model file has no base classes: Accelerate converts such a module, and accel says that it does not."""
    from accelerate.utils.ao import convert_model_to_fp8_ao
    from torchao.float8.float8_linear import Float8Linear

    torch.manual_seed(0)
    linears = [torch.nn.Linear(32, 32), Dense(32, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 256)]
    model = torch.nn.Sequential(torch.nn.Embedding(256, 32), *linears)
    torch.jit.trace(model, torch.zeros(4, 32, dtype=torch.long)).save(str(tmp_path / "model.pt"))
    config = config_of(tmp_path, 1, 1, **NO, **{"model.path": str(tmp_path / "model.pt")})
    ours = [linear["module"] for linear in json.loads(accel("--json", "plan", config).stdout)["linears"] if linear["float8"]]
    convert_model_to_fp8_ao(model)
    theirs = [name for name, module in model.named_modules() if isinstance(module, Float8Linear)]
    missing = [name for name in theirs if name not in ours]
    assert missing == ["2"]
    assert "because the name of their class does not end in 'Linear': '2'. Accelerate" in accel("launch", config).stderr


def test_the_plan_names_the_linears(accel, tmp_path):
    train_runs.export(tmp_path / "gpt.pt")
    config = config_of(tmp_path, 2, 3, **VERSION_2)
    assert "7 of 9 linears compute in float8, recipe tensorwise" in accel("plan", config).stdout
    linears = json.loads(accel("--json", "plan", config).stdout)["linears"]
    assert [linear["module"] for linear in linears if linear["float8"]] == CONVERTED
    assert [linear["kept_reason"] for linear in linears if not linear["float8"]] == [
        "it is the first linear", "it is the last linear"]


def test_the_plan_has_no_copy_of_autocast_of_a_float8_weight(accel, tmp_path):
    """Such a product casts its weight to one byte, and saves the weight itself for backward."""
    model = train_runs.export(tmp_path / "gpt.pt")
    config = config_of(tmp_path, 1, 1, **NO)
    copies = {precision: json.loads(accel("--json", "plan", config, "--mixed-precision", precision).stdout)["plans"][0]["memory"]
              ["autocast_bytes"] for precision in ("bf16", "fp8")}
    weights = sum(dict(model.named_modules())[name].weight.numel() for name in CONVERTED)
    assert copies["bf16"] - copies["fp8"] == 2 * weights
