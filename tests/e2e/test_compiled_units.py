"""Layers that run compiled code train as those that run the operators of the model. The judge of an exact comparison is the
same run in another form; that of the arithmetic is the interpreted run, which other tests compare with Python."""

import json
import zipfile

import pytest
import torch
import train_runs
from accel_export import export
from gpt import Block as PlainBlock

STEPS = 20
# Float32 has 24 bits. A step adds up numbers in another order, and AdamW divides by the root of a sum of squares, so that a
# difference in the last bits of a gradient can change small steps by more. The loss is of order 1.
ROUNDING = {"float32": 2e-4, "bfloat16": 3e-2, "autocast": 2e-3, "both": 2e-3}
COMPILED = {"dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_use_fullgraph": True}}


class Block(PlainBlock):
    """Gives first a value of the size of the other, which depends on nothing that is trained."""

    def forward(self, x, scale):
        scale = scale * 0.5
        return scale, super().forward(x) * (1 + scale)


class Turned(train_runs.GPT):
    """Its last layer gets a gradient whose memory is in another order than that of the layer's output. Its layers have an
    output without a gradient."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.blocks = torch.nn.ModuleList(Block(sizes["width"], sizes["heads"], sizes["dropout"]) for _ in self.blocks)
        self.norm, self.head = None, torch.nn.Conv1d(sizes["width"], sizes["vocabulary"], 1)

    def forward(self, input_ids):
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        scale = torch.cos(input_ids).unsqueeze(-1).expand(x.shape)
        for block in self.blocks:
            scale, x = block(x, scale)
        return self.head(x.transpose(1, 2)).transpose(1, 2) + scale[..., :1]


def angles(x):
    """In the 8 bits of bfloat16 these positions, and so the cosines, would be others."""
    positions = 1000 + torch.arange(x.shape[1]).float()
    return (positions[:, None] @ torch.logspace(0, -1, x.shape[2])[None, :]).cos().to(x.dtype)


class RotaryEmbedding(torch.nn.Module):
    """accel runs modules with such a name without autocast, if it calls them."""

    def forward(self, x):
        return angles(x)


class Rotated(PlainBlock):
    """Computes angles in all ways that autocast may be on or off for them."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.rotary = RotaryEmbedding()

    def forward(self, x, outer):
        with torch.autocast("cuda", enabled=False):
            turned = angles(x)
        with torch.no_grad():
            turned = 0.5 * turned + self.rotary(x)  # The block begins outside of the module.
        return super().forward(x * (1 + 0.5 * (turned + outer(x) + self.rotary(x))))


class Turning(train_runs.GPT):
    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.blocks = torch.nn.ModuleList(Rotated(sizes["width"], sizes["heads"], sizes["dropout"]) for _ in self.blocks)
        self.rotary = RotaryEmbedding()

    def forward(self, input_ids):
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x, self.rotary)
        return self.head(self.norm(x))


def gpt(dropout=0.0, kind=train_runs.GPT):
    torch.manual_seed(0)
    model = kind(**{**train_runs.SIZES, "dropout": dropout})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model


# A model for each precision, and one with dropout that keeps nothing that it can compute again.
MODELS = {
    "float32": (lambda: gpt(kind=Turned), torch.float32, {}),
    "bfloat16": (gpt, torch.bfloat16, {}),
    "autocast": (lambda: gpt(kind=Turning), torch.float32, {"compile_autocast": torch.bfloat16}),
    "both": (lambda: gpt(kind=Turning), torch.bfloat16, {"compile_autocast": torch.bfloat16}),
    "dropout": (lambda: gpt(0.2), torch.float32, {"compile_memory": 0.0}),
}


@pytest.fixture(scope="session")
def file_of(made_once):
    """file_of(NAME) is the file of a model with compiled code. It takes half a minute to make, once."""

    def make(name, folder):
        model, dtype, options = MODELS[name]
        ids = torch.zeros(4, train_runs.SIZES["length"], dtype=torch.long)
        export(model(), ids, folder / f"{name}.pt2", dtype=dtype, compile=True, check=False, say=lambda text: None, **options)

    return lambda name: made_once(f"compiled_{name}", lambda folder: make(name, folder)) / f"{name}.pt2"


def launch(accel, directory, model, *flags, processes=2, compiled=True, code=0, env=None, **training):
    """Trains a model, and returns what the run says."""
    directory.mkdir(exist_ok=True)
    path = train_runs.config(directory, processes, **{"model.path": str(model), "max_steps": STEPS, **training})
    document = json.loads(path.read_text())
    if compiled:
        document.update(COMPILED if compiled is True else compiled)
    path.write_text(json.dumps(document))
    result = accel("launch", path, *flags, code=code, env=env)
    return result.stdout + result.stderr


def losses(accel, directory, *arguments, **options):
    said = launch(accel, directory, *arguments, **options)
    assert ("2 layers run compiled code" in said) == (options.get("compiled", True) is not False)
    return train_runs.metrics(directory)


FORMS = {"float32": ("no", {}), "bfloat16": ("bf16", {}), "autocast": ("bf16", {"distributed_type": "MULTI_CPU"}),
         "both": ("bf16", {"fsdp_config.fsdp_version": 1, "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Rotated"})}


@pytest.mark.long(but="float32-2")
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_losses_are_those_of_the_interpreter(accel, file_of, tmp_path, form, processes):
    precision, options = FORMS[form]
    options = {"processes": processes, **(options if processes > 1 or form != "autocast" else {"distributed_type": "NO"})}
    run = file_of(form), "--mixed-precision", precision
    found = losses(accel, tmp_path / "compiled", *run, **options)
    expected = losses(accel, tmp_path / "plain", *run, compiled=False, **options)
    assert len(found) == STEPS
    assert found == pytest.approx(expected, abs=ROUNDING[form])
    assert expected[-1] < expected[0] - 0.5  # The model learns, so that equal losses mean equal gradients.


@pytest.mark.long(but="float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "autocast", "both"])
def test_the_code_computes_with_vectors(file_of, dtype):
    """The error function of one number is libm's. That of a vector calls an exponential in libtorch, Sleef's."""
    with zipfile.ZipFile(file_of(dtype)) as archive:
        code = [archive.read(name) for name in archive.namelist() if name.endswith("_forward.so")]
    assert len(code) == 1
    assert b"Sleef_exp" in code[0]


@pytest.mark.long
def test_recomputation_draws_the_same_dropout(accel, file_of, tmp_path):
    plain = losses(accel, tmp_path / "plain", file_of("dropout"))
    again = losses(accel, tmp_path / "again", file_of("dropout"))
    recomputed = losses(accel, tmp_path / "recomputed", file_of("dropout"),
                        **{"fsdp_config.fsdp_activation_checkpointing": True})
    assert plain == again == recomputed
    other = losses(accel, tmp_path / "other", file_of("dropout"), seed=43)
    assert other[0] != plain[0]


@pytest.mark.long
def test_a_run_that_goes_on_has_the_bits_of_one_that_was_not_stopped(accel, file_of, tmp_path):
    whole = losses(accel, tmp_path / "whole", file_of("dropout"), gradient_accumulation_steps=2)
    options = {"gradient_accumulation_steps": 2, "checkpoint": {"every": 5, "resume": "auto"}}
    first = {**options, "lr_scheduler.total_steps": STEPS, "max_steps": 10}
    losses(accel, tmp_path / "parts", file_of("dropout"), **first)
    said = launch(accel, tmp_path / "parts", file_of("dropout"), **{**options, "lr_scheduler.total_steps": STEPS})
    assert "dynamo_config.backend" not in said
    assert train_runs.metrics(tmp_path / "parts") == whole
    said = launch(accel, tmp_path / "parts", file_of("dropout"), compiled=False,
                  **{**options, "lr_scheduler.total_steps": STEPS, "max_steps": STEPS + 1})
    assert "dynamo_config.backend was INDUCTOR and is NO" in said


@pytest.mark.long
def test_memory_that_units_free_is_not_read(accel, file_of, tmp_path):
    """With ACCEL_POISON what is freed becomes NaN."""
    plain = losses(accel, tmp_path / "plain", file_of("dropout"), max_steps=3)
    assert losses(accel, tmp_path / "poison", file_of("dropout"), max_steps=3, env={"ACCEL_POISON": "1"}) == plain


def test_ranks_with_whole_copies_run_compiled_code(accel, file_of, tmp_path):
    found = losses(accel, tmp_path / "compiled", file_of("float32"), distributed_type="MULTI_CPU")
    expected = losses(accel, tmp_path / "plain", file_of("float32"), distributed_type="MULTI_CPU", compiled=False)
    assert found == pytest.approx(expected, abs=ROUNDING["float32"])


@pytest.mark.long
def test_evaluation_runs_the_operators_of_the_model(accel, file_of, tmp_path):
    """The first evaluation comes before a step could change a weight, and has the bits of a run without compiled code."""
    (tmp_path / "eval.txt").write_text(train_runs.TEXT.read_text()[:4000])
    options = {"lr_scheduler": {"type": "constant_with_warmup", "warmup_steps": 3}, "max_steps": 1, "eval_every": 1,
               "data.eval": {"format": "text", "path": str(tmp_path / "eval.txt"), "sequence_length": 32}}
    for name, compiled in (("compiled", True), ("plain", False)):
        launch(accel, tmp_path / name, file_of("dropout"), compiled=compiled, **options)
    found, expected = (train_runs.metrics(tmp_path / name, "eval_loss") for name in ("compiled", "plain"))
    assert found == expected and len(found) == 1


def changed(file_of, tmp_path, change):
    """Returns a copy of a model with another description of its code."""
    path = tmp_path / "changed.pt2"
    with zipfile.ZipFile(file_of("float32")) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as copy:
        for item in source.infolist():
            data = source.read(item)
            if item.filename.endswith("extra/compiled.json"):
                description = json.loads(data)
                change(description)
                data = json.dumps(description).encode()
            copy.writestr(item, data)
    return path


@pytest.mark.long(but="torch-2.10.0-is for torch 2.10.0, and this run has 2.")
@pytest.mark.parametrize("key, value, said", [
    ("torch", "2.10.0", "is for torch 2.10.0, and this run has 2."),
    ("instruction_set", "x86-64-v9", "x86-64-v9"),
    ("dtype", "bfloat16", "is for the dtype bfloat16, and this run has float32"),
    ("autocast", "bfloat16", "is for the dtype float32 under autocast to bfloat16, and this run has float32"),
])
def test_code_for_something_else_is_refused_or_left_out(accel, file_of, tmp_path, key, value, said):
    path = changed(file_of, tmp_path, lambda description: description.update({key: value}))
    assert said in launch(accel, tmp_path / "refused", path, code=2 if key in ("dtype", "autocast") else 6)
    plain = launch(accel, tmp_path / "warned", path, compiled={"dynamo_config": {"dynamo_backend": "INDUCTOR"}}, max_steps=2)
    assert said in plain and "no layer runs compiled code" in plain
    launch(accel, tmp_path / "plain", path, compiled=False, max_steps=2)
    assert train_runs.metrics(tmp_path / "warned") == train_runs.metrics(tmp_path / "plain")


@pytest.mark.parametrize("kind", ["FSDP", "MULTI_CPU"])  # The layers are units, or are not.
def test_sizes_of_a_call_are_compared(accel, file_of, tmp_path, kind):
    def widen(description):
        for tensor in description["packages"][0]["takes"]:
            if "input" in tensor:
                tensor["shape"][-1] += 1

    said = launch(accel, tmp_path / "run", changed(file_of, tmp_path, widen), code=6, distributed_type=kind)
    assert "the compiled code of 'blocks.0' takes input 0 as float32" in said
    assert "export the model again with --compile" in said


def test_a_unit_inside_a_compiled_layer_is_refused(accel, file_of, tmp_path):
    inside = {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Attention"}
    said = launch(accel, tmp_path / "run", file_of("float32"), code=2, **inside)
    assert "'blocks.0' runs compiled code, and nothing gathers the unit 'blocks.0.attention' inside it" in said


def test_sizes_of_a_gradient_are_compared(accel, file_of, tmp_path):
    def widen(description):
        description["packages"][0]["output_gradients"][0]["shape"][-1] += 1

    said = launch(accel, tmp_path / "run", changed(file_of, tmp_path, widen), code=6)
    assert "the compiled code of 'blocks.0' takes the gradient of output 1 as float32" in said


def test_a_model_without_code_is_refused(accel, tmp_path):
    train_runs.export_pt2(tmp_path / "plain.pt2", gpt())
    assert "the model file has none" in launch(accel, tmp_path / "run", tmp_path / "plain.pt2", code=2)


@pytest.mark.parametrize("changes, flags, said", [
    ({"dynamo_config": {"dynamo_backend": "ONNXRT"}}, [], "asks for another backend of Python's torch.compile"),
    ({**COMPILED, "fp8_config": {"enable_fsdp_float8_all_gather": False}}, ["--mixed-precision", "fp8"], "and not with 'mixed_precision: fp8'"),
])
def test_contradictions_are_refused(accel, file_of, tmp_path, changes, flags, said):
    assert said in launch(accel, tmp_path / "run", file_of("float32"), *flags, compiled=changes, code=2)


@pytest.mark.parametrize("backend", ["NO", "EAGER", "aot_eager"])
def test_backends_that_compile_nothing_have_no_effect(accel, file_of, tmp_path, backend):
    said = launch(accel, tmp_path / "run", file_of("float32"), compiled={"dynamo_backend": backend}, max_steps=1)
    assert "compiled code" not in said


def test_inspect_and_import_keep_the_code(accel, file_of, tmp_path):
    assert "compiled    2 layers of Block (" in accel("inspect", file_of("float32")).stdout
    accel("import", file_of("float32"), tmp_path / "imported.pt")
    assert "compiled    2 layers of Block (" in accel("inspect", tmp_path / "imported.pt").stdout
    assert torch.export.load(file_of("float32")).module() is not None  # torch reads the file, and runs no code of it.
    found = losses(accel, tmp_path / "run", tmp_path / "imported.pt", max_steps=3)
    assert found == losses(accel, tmp_path / "pt2", file_of("float32"), max_steps=3)
