#!/usr/bin/env python3
"""Measures the peak memory of single ranks of a large world beside the plan's. The process group is a fake.

    tools/dev bench one-rank [--world 1024] [--ranks 0,511,1023] [--layers 2] [--width 8192] [--set KEY=VALUE]...

The model has the shapes of Llama 2 70B in fewer layers, or of another width, and trains in bf16. It is exported
without weights, which are drawn. What libtorch itself takes is the peak of the same model with hardly any parameters, less
its plan. --set changes the configuration of the run.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import bench

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]
import fake_ranks  # noqa: E402
import train_runs  # noqa: E402

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_key_value_heads": 8,
         "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "use_cache": False}


def shapes(layers, width, vocabulary):
    return {**LLAMA, "num_hidden_layers": layers, "hidden_size": width, "intermediate_size": width * 7 // 2,
            "num_attention_heads": min(64, width // 8), "vocab_size": vocabulary}


def prepare(accel, folder, model, world, settings):
    """Returns the plan of a rank, and what each rank is given."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(model))
    subprocess.run([sys.executable, ROOT / "tools/export/accel-export", folder, folder / "llama.pt2", "--dtype", "bfloat16",
                    "--no-check", "--accel", accel], check=True, stdout=subprocess.DEVNULL)
    config = train_runs.config(folder, 2, **{
        "model.path": str(folder / "llama.pt2"), "model.init.std": 0.02, "data.batch_size": 1, "max_steps": 2,
        "data.train.sequence_length": 8, "fsdp_config.fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer", **settings})
    config.write_text(json.dumps({**json.loads(config.read_text()), "mixed_precision": "bf16"}))
    plan = subprocess.run([accel, "plan", config, "--json", "--world-size", str(world)], check=True, capture_output=True)
    return json.loads(plan.stdout)["plans"][0]["memory"], fake_ranks.resolve(accel, config, world)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accel", required=True, type=pathlib.Path)
    parser.add_argument("--world", type=int, default=1024)
    parser.add_argument("--ranks", default="0,511,1023")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--set", action="append", default=[], type=lambda text: text.split("=", 1), metavar="KEY=VALUE")
    options = parser.parse_args()
    settings = {key: json.loads(value) for key, value in options.set}
    with tempfile.TemporaryDirectory() as name:
        models = {"tiny": shapes(options.layers, 64, 256), "llama": shapes(options.layers, options.width, 32000)}
        plans = {title: prepare(options.accel, pathlib.Path(name) / title, model, options.world, settings)
                 for title, model in models.items()}
        parts = plans["llama"][0]
        print(f"{options.layers} layers of width {options.width}, {options.world} ranks; of the plan "
              + ", ".join(f"{key.removesuffix('_bytes')} {value / 1e9:.3f} GB" for key, value in parts.items()
                          if key.endswith("_bytes") and value > 1e6))
        print("\n| rank | plan | libtorch itself | both | measured | ratio | seconds |\n| --- | --- | --- | --- | --- | --- | --- |")
        for rank in map(int, options.ranks.split(",")):
            peaks = {}
            for title, (_, resolved) in plans.items():
                command, environment = fake_ranks.command(options.accel, resolved, rank, options.world)
                seconds, peaks[title] = bench.run(command, env={**environment, "OMP_NUM_THREADS": "2"})
            planned = parts["total_bytes"]
            base = peaks["tiny"] - plans["tiny"][0]["total_bytes"]
            print(f"| {rank} | {planned / 1e9:.3f} GB | {base / 1e9:.3f} GB | {(base + planned) / 1e9:.3f} GB "
                  f"| {peaks['llama'] / 1e9:.3f} GB | {peaks['llama'] / (base + planned):.3f} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
