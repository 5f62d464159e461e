#!/bin/sh
# Fine-tunes a Hugging Face model on chats: from its directory to a directory that from_pretrained loads.
#
#     examples/finetune/run.sh [MODEL_DIRECTORY TRAIN.jsonl HELD_OUT.jsonl]
#
# Without arguments it makes a tiny model and chats, and trains on two processes of the CPU. With them it takes every GPU of
# the machine. It writes into the current directory: train.safetensors, held-out.safetensors, finetune.pt2, finetune.yaml, the
# run in runs/finetune, and the result in `trained`. LENGTH is the most tokens of a sample, STEPS how many steps are made, LR
# the learning rate.
set -eu
examples=$(cd "$(dirname "$0")/.." && pwd)

if [ $# -eq 0 ]; then
  python "$examples/tiny_llama.py" tiny
  python "$examples/finetune/make_chats.py" chats.jsonl held-out.jsonl
  set -- tiny chats.jsonl held-out.jsonl
  : "${LENGTH:=128}" "${LR:=3.0e-3}"
  where="--cpu --num-processes 2"
fi
model=$1 train=$2 held_out=$3
length=${LENGTH:-1024} steps=${STEPS:-100} lr=${LR:-1.0e-5}

# The structure of the model, checked to keep documents apart that share a sample.
accel-export "$model" finetune.pt2 --inputs input_ids,position_ids --overwrite

# The chats as tokens of the model's own tokenizer.
accel-export --tokenize "$train" --tokenizer "$model" -o train.safetensors --overwrite
accel-export --tokenize "$held_out" --tokenizer "$model" -o held-out.safetensors --overwrite

# A first configuration, and what it cannot know: the weights to begin with, and how to train.
# shellcheck disable=SC2086 # `where` is several words.
accel config finetune.pt2 --data train.safetensors -o finetune.yaml --force ${where:-}
sed -i -e "s|# weights: DIRECTORY|weights: $model|" -e "s|sequence_length: [0-9]*|sequence_length: $length|" \
  -e "s|lr: 3.0e-4|lr: $lr|" -e "s|max_steps: 100|max_steps: $steps|" finetune.yaml
accel check finetune.yaml

accel launch finetune.yaml

# Before and after, on chats that were held out. Answers of the assistant alone count, as in training.
accel evaluate finetune.yaml "$model" --data held-out.safetensors
accel evaluate finetune.yaml --data held-out.safetensors

rm -rf trained
accel merge-weights runs/finetune trained
