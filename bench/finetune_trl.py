#!/usr/bin/env python3
"""Fine-tune the model of examples/finetune with accel and with trl's SFTTrainer on the same chats, and compare held-out losses.

    tools/dev bench finetune-trl [--seeds N] [--steps N] [--cases NAME...]

Both programs train all weights or a LoRA adapter, on packed or on padded chats, for as many steps of as many samples, with the
same optimizer, schedule, clipping and starting weights; the order of the chats is each program's own. One judge, a loop of
transformers, computes the held-out loss of each result: the mean over the tokens of the assistant. A line has the mean over the
seeds, the spread (the largest less the smallest), and each loss. Full training begins with random weights, as the example does, and
LoRA with the result of such a training by accel, since an adapter cannot teach random weights much.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import datasets
import peft
import torch
import transformers
import trl
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples/finetune"))
import plain_loop  # noqa: E402

LENGTH = 128
WARMUP, LEAST = 10, 0.1
# Samples of a step. Packed ones are nearly full, and a padded chat has about 58 tokens.
CASES = {"full, packed": {"lora": False, "packed": True, "batch": 16, "lr": 3e-3},
         "full, padded": {"lora": False, "packed": False, "batch": 35, "lr": 3e-3},
         "LoRA, packed": {"lora": True, "packed": True, "batch": 16, "lr": 1e-2},
         "LoRA, padded": {"lora": True, "packed": False, "batch": 35, "lr": 1e-2}}


def command(*words, cwd):
    result = subprocess.run([*map(str, words)], cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} failed:\n{result.stdout}")
    return result.stdout


def prepare(folder, export, accel):
    """Makes the model and the chats of examples/finetune/run.sh, and what accel reads of them."""
    command(sys.executable, ROOT / "examples/tiny_llama.py", "tiny", cwd=folder)
    command(sys.executable, ROOT / "examples/finetune/make_chats.py", "chats.jsonl", "held-out.jsonl", cwd=folder)
    command(*export, "--tokenize", "chats.jsonl", "--tokenizer", "tiny", "-o", "train.safetensors", cwd=folder)
    command(*export, "tiny", "full.pt2", "--inputs", "input_ids,position_ids", "--accel", accel, cwd=folder)


def write_adapter(folder, seed, export, accel):
    """Writes the adapter of the folder's `base` that both programs begin with, and the model file that has it."""
    torch.manual_seed(seed)
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear",
                           base_model_name_or_path="base")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    peft.get_peft_model(model, lora).save_pretrained(folder / f"adapter-{seed}")
    command(*export, "base", f"lora-{seed}.pt2", "--inputs", "input_ids,position_ids", "--weights", "--peft", f"adapter-{seed}",
            "--accel", accel, cwd=folder)


def train_with_accel(folder, case, seed, steps, accel):
    """Returns the directory of the result, which from_pretrained loads."""
    name = f"accel-{seed}"
    document = {
        "distributed_type": "MULTI_CPU", "use_cpu": True, "num_processes": 1, "mixed_precision": "no",
        "training": {
            "model": {"path": f"lora-{seed}.pt2" if case["lora"] else "full.pt2", "inputs": ["input_ids", "position_ids"],
                      "loss": "cross_entropy", "targets": "labels", **({} if case["lora"] else {"weights": "tiny"})},
            "data": {"train": {"format": "documents", "path": "train.safetensors", "sequence_length": LENGTH,
                               "packing": "best_fit" if case["packed"] else "none"}, "batch_size": case["batch"]},
            "optimizer": {"type": "adamw", "lr": case["lr"], "betas": [0.9, 0.95], "weight_decay": 0.1, "no_decay": ["bias", "norm"]},
            "lr_scheduler": {"type": "cosine", "warmup_steps": WARMUP, "min_lr_ratio": LEAST}, "max_steps": steps, "max_grad_norm": 1.0,
            "seed": seed, "output_dir": name, "checkpoint": {"every": steps, **({"adapter_only": True} if case["lora"] else {})}}}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
    command(accel, "launch", f"{name}.yaml", cwd=folder)
    merge = ("base", f"{name}-out", "--adapter", name) if case["lora"] else (name, f"{name}-out")
    command(accel, "merge-weights", *merge, cwd=folder)
    return folder / f"{name}-out"


def train_with_trl(folder, case, seed, steps, tokenizer):
    """Returns the directory of the result, which from_pretrained loads."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / ("base" if case["lora"] else "tiny"))
    if case["lora"]:
        model = peft.PeftModel.from_pretrained(model, folder / f"adapter-{seed}", is_trainable=True)
    records = datasets.Dataset.from_list([json.loads(line) for line in (folder / "chats.jsonl").open()])
    options = trl.SFTConfig(
        output_dir=str(folder / "trl"), per_device_train_batch_size=case["batch"], max_steps=steps, learning_rate=case["lr"],
        lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs={"min_lr_rate": LEAST}, warmup_steps=WARMUP, weight_decay=0.1,
        adam_beta2=0.95, max_grad_norm=1.0, max_length=LENGTH, packing=case["packed"], assistant_only_loss=True, seed=seed, use_cpu=True,
        bf16=False, gradient_checkpointing=False, save_strategy="no", report_to="none", disable_tqdm=True, logging_steps=steps)
    trainer = trl.SFTTrainer(model=model, args=options, train_dataset=records, processing_class=tokenizer)
    trainer.train()
    result = trainer.model.merge_and_unload() if case["lora"] else trainer.model
    result.save_pretrained(folder / f"trl-{seed}-out")
    return folder / f"trl-{seed}-out"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accel", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    os.environ["OMP_NUM_THREADS"] = "1"  # Of accel's rank; torch.set_num_threads is for this process.
    torch.set_num_threads(1)
    export = (sys.executable, ROOT / "tools/export/accel-export")
    accel = options.accel.resolve()
    print(f"trl {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}; {options.steps} steps, "
          f"{options.seeds} seeds", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prepare(folder, export, accel)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "tiny")
        held_out = plain_loop.documents_of(tokenizer, folder / "held-out.jsonl")

        def judged(directory):
            return plain_loop.held_out_loss(transformers.AutoModelForCausalLM.from_pretrained(directory), held_out)

        train_with_accel(folder, CASES["full, packed"], options.seeds, options.steps, accel).rename(folder / "base")
        print(f"untrained: {judged(folder / 'tiny'):.4f}; the base of LoRA: {judged(folder / 'base'):.4f}", flush=True)
        for seed in range(options.seeds):
            write_adapter(folder, seed, export, accel)
        for case in options.cases:
            losses, seconds = {"accel": [], "trl": []}, {"accel": 0.0, "trl": 0.0}
            for seed in range(options.seeds):
                random.seed(seed)
                for program, train in (("accel", lambda: train_with_accel(folder, CASES[case], seed, options.steps, accel)),
                                       ("trl", lambda: train_with_trl(folder, CASES[case], seed, options.steps, tokenizer))):
                    command("rm", "-rf", f"{program}-{seed}", f"{program}-{seed}-out", cwd=folder)
                    begin = time.monotonic()
                    result = train()
                    seconds[program] += time.monotonic() - begin
                    losses[program].append(judged(result))
            print(f"{case}: " + "; ".join(
                f"{program} {sum(found) / len(found):.4f}, spread {max(found) - min(found):.4f} ({', '.join(f'{loss:.4f}' for loss in found)}), "
                f"{seconds[program] / len(found):.0f} s a run" for program, found in losses.items()), flush=True)


if __name__ == "__main__":
    main()
