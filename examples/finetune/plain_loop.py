#!/usr/bin/env python3
"""Fine-tune on the chats of run.sh with a loop of PyTorch and transformers, to compare held-out losses.

    python examples/finetune/plain_loop.py MODEL_DIRECTORY TRAIN.jsonl HELD_OUT.jsonl [--steps N] [--tokens N] [--lr X]

Chats are padded and not packed. A step takes random chats of about --tokens tokens. With --steps 0 it only evaluates the
directory. The optimizer and the schedule are those of run.sh.
"""

import argparse
import json
import math
import random

import torch
import transformers


def documents_of(tokenizer, path):
    """Returns (tokens, labels) of each chat; what the assistant does not say has the label -100."""
    documents = []
    for line in open(path):
        chat = tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=True, return_dict=True,
                                             return_assistant_tokens_mask=True)
        ids, mask = torch.tensor(chat["input_ids"]), torch.tensor(chat["assistant_masks"])
        documents.append((ids, torch.where(mask == 1, ids, -100)))
    return documents


def loss_of(model, documents):
    """Returns the sum of the losses of all labels that count, and their number."""
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([ids for ids, _ in documents], batch_first=True)
    labels = pad([labels for _, labels in documents], batch_first=True, padding_value=-100)
    mask = pad([torch.ones_like(ids) for ids, _ in documents], batch_first=True)
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    return loss, int((labels[:, 1:] != -100).sum())


@torch.no_grad()
def held_out_loss(model, documents):
    model.eval()
    parts = [loss_of(model, documents[i:i + 16]) for i in range(0, len(documents), 16)]
    return sum(loss.item() for loss, _ in parts) / sum(count for _, count in parts)


def train(model, documents, options):
    plain = [p for name, p in model.named_parameters() if "norm" in name or "bias" in name]
    decayed = [p for name, p in model.named_parameters() if "norm" not in name and "bias" not in name]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], lr=options.lr, betas=(0.9, 0.95),
                                  weight_decay=0.1)

    def factor(step, warmup=10, least=0.1):
        if step < warmup:
            return step / warmup
        return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, options.steps - warmup)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    order = []
    model.train()
    for _ in range(options.steps):
        chosen, tokens = [], 0
        while tokens < options.tokens:
            order = order or random.sample(documents, len(documents))
            chosen.append(order.pop())
            tokens += len(chosen[-1][0])
        optimizer.zero_grad()
        loss, count = loss_of(model, chosen)
        (loss / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("train")
    parser.add_argument("held_out")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=3e-3)
    options = parser.parse_args()
    random.seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model)
    if options.steps:
        train(model, documents_of(tokenizer, options.train), options)
    print(f"held-out loss {held_out_loss(model, documents_of(tokenizer, options.held_out)):.6f}")


if __name__ == "__main__":
    main()
