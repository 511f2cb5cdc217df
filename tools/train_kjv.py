"""Make examples/models/kjv-3m-q8_0.gguf: a small Llama trained on the King James Bible, from a Debian package's text.

    apt-get download bible-kjv-text                                       the text; any Debian or Ubuntu has it
    python tools/train_kjv.py train bible-kjv-text_*.deb work/            25 minutes on 2 idle cores; can be resumed
    python tools/train_kjv.py evaluate bible-kjv-text_*.deb work/         perplexity, and the text of the tests

``train`` writes work/hf, a Hugging Face folder, and from it work/kjv-3m-{f32,f16,q8_0,q4_0}.gguf with hotshoe's
converter. It needs PyTorch, transformers and tokenizers (``pip install --group oracles``), dpkg-deb and gzip.
OMP_WAIT_POLICY=passive helps a lot if other programs use the processor too.

Every 20th chapter is held out: the tokenizer and the model never see it, and the weights that predict it best are kept.
The Bible quotes itself (Kings and Chronicles, the gospels), so some held-out sentences occur in the training text too.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import subprocess
import tempfile
import time
from itertools import groupby
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

NAME = "kjv-3m"
HOLD_OUT = 20  # every 20th chapter
BOS, EOS = 0, 1  # BOS begins a text, EOS follows the last verse of a chapter
CONTEXT = 512
CONFIG = LlamaConfig(
    vocab_size=2048,
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=CONTEXT,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    bos_token_id=BOS,
    eos_token_id=EOS,
)
BATCH, LEARNING_RATE, WARM_UP, DROPOUT, WEIGHT_DECAY = 8, 2e-3, 100, 0.1, 0.1
EVALUATE_EVERY = 100
DTYPES = ("f32", "f16", "q8_0", "q4_0")
CARD = """---
model_name: KJV 3M
license: mit
language: [en]
description: A Llama of 3.5 million parameters that continues King James Bible verse; made for trying hotshoe out.
---
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Train and measure the model that hotshoe ships.")
    parser.add_argument("command", choices=("train", "evaluate"))
    parser.add_argument("text", type=Path, help="bible-kjv-text_*.deb")
    parser.add_argument("folder", type=Path, help="the folder for all results")
    parser.add_argument("--steps", type=int, default=2000, help=f"of {BATCH} x {CONTEXT} tokens")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    chapters = read_chapters(args.text)
    held_out = chapters[HOLD_OUT - 1 :: HOLD_OUT]
    if args.command == "train":
        train([c for i, c in enumerate(chapters, 1) if i % HOLD_OUT], held_out, args.folder, args.steps)
        finish(args.folder)
    else:
        evaluate(held_out, args.folder)


def read_chapters(package: Path) -> list[list[str]]:
    """The verses of each of the 1189 chapters, without their numbers."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
        data = (Path(folder) / "usr/lib/bible.data").read_bytes()
    # a table of offsets, then one stream of the old `compress`, which gzip reads too
    stream = data[data.index(b"\x1f\x9d\x90") :]
    text = subprocess.run(["gzip", "-dc"], input=stream, stdout=subprocess.PIPE, check=True).stdout.decode("ascii")
    verses = re.findall(r"^(\w+):\d+ (.+)$", text, re.MULTILINE)  # "Ge1:1 In the beginning …"
    return [[verse for _, verse in chapter] for _, chapter in groupby(verses, key=lambda v: v[0])]


def windows(chapters: list[list[str]], tokenizer: Tokenizer) -> list[str]:
    """Texts of consecutive whole verses, each as long as the context allows."""
    texts: list[str] = []
    for first, *others in chapters:
        texts.append(first)
        for verse in others:
            longer = f"{texts[-1]}\n{verse}"
            if len(tokenizer.encode(longer).ids) <= CONTEXT:
                texts[-1] = longer
            else:
                texts.append(verse)
    return texts


def make_tokenizer(chapters: list[list[str]], folder: Path) -> Tokenizer:
    """Train a byte-level BPE that splits words like GPT-2, which every engine supports."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG.vocab_size,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(("\n".join(chapter) for chapter in chapters), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", model_max_length=CONTEXT
    ).save_pretrained(folder)
    return tokenizer


def train(chapters: list[list[str]], held_out: list[list[str]], folder: Path, steps: int) -> None:
    torch.manual_seed(0)
    hf, checkpoint = folder / "hf", folder / "checkpoint.pt"
    tokenizer = make_tokenizer(chapters, hf)
    stream, starts = token_stream(chapters, tokenizer)
    tests = [tokenizer.encode(text).ids for text in windows(held_out, tokenizer)]
    model = LlamaForCausalLM(CONFIG)
    add_dropout(model)
    print(f"{model.num_parameters():,} parameters; {len(stream):,} tokens, {sum(map(len, tests)):,} held out")
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95))
    first, best = 0, math.inf
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        first, best = saved["step"], saved["best"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    began = time.perf_counter()
    for step in range(first, steps):
        random.seed(step)  # so that a resumed training is the same as one without a break
        torch.manual_seed(step)
        batch = torch.stack([stream[i : i + CONTEXT + 1] for i in random.choices(starts, k=BATCH)])
        batch[:, 0] = BOS  # over the line break or BOS before a verse
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        loss = loss_of(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % EVALUATE_EVERY == 0 or step + 1 == steps:
            nats = mean_loss(model, tests)
            speed = (step + 1 - first) * BATCH * CONTEXT / (time.perf_counter() - began)
            print(f"{step + 1:5} loss {loss:.3f}, held out {nats:.4f}, {speed:.0f} tokens/s", flush=True)
            if nats < best:
                best = nats
                model.save_pretrained(hf)
            state = {"step": step + 1, "best": best, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, checkpoint)


def token_stream(chapters: list[list[str]], tokenizer: Tokenizer) -> tuple[torch.Tensor, list[int]]:
    """Chapters as BOS verse newline verse … EOS, and the positions of the tokens before the verses."""
    newline = tokenizer.encode("\n", add_special_tokens=False).ids
    ids: list[int] = []
    starts = []
    for chapter in chapters:
        for i, verse in enumerate(chapter):
            starts.append(len(ids))
            ids += newline if i else [BOS]
            ids += tokenizer.encode(verse, add_special_tokens=False).ids
        ids.append(EOS)
    return torch.tensor(ids), [s for s in starts if s + CONTEXT < len(ids)]


def add_dropout(model: LlamaForCausalLM) -> None:
    """Add dropout to the embeddings and to what each block adds: Llama has none, but sees each text several times."""

    def drop(module: nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(output, DROPOUT, module.training)

    for name, module in model.named_modules():
        if name.endswith(("embed_tokens", "o_proj", "down_proj")):
            module.register_forward_hook(drop)


def learning_rate(step: int, steps: int) -> float:
    """The factor of the learning rate: a linear warm-up, then a cosine down to one hundredth."""
    if step < WARM_UP:
        return LEARNING_RATE * (step + 1) / WARM_UP
    done = (step - WARM_UP) / max(1, steps - WARM_UP)
    return LEARNING_RATE * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def loss_of(model: LlamaForCausalLM, batch: torch.Tensor) -> torch.Tensor:
    model.train()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch[:, :-1], use_cache=False).logits
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def mean_loss(model: LlamaForCausalLM, texts: list[list[int]]) -> float:
    """The mean negative log-likelihood of all tokens except the first of each text, in nats, in float32."""
    model.eval()
    losses = []
    for ids in texts:
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, :-1]
        losses.append(nn.functional.cross_entropy(logits.double(), torch.tensor(ids[1:]), reduction="none"))
    return torch.cat(losses).mean().item()


def finish(folder: Path) -> None:
    """Write the other files of a Hugging Face folder, and convert it to GGUF."""
    from hotshoe.convert import convert

    hf = folder / "hf"
    GenerationConfig(bos_token_id=BOS, eos_token_id=EOS, max_length=CONTEXT, do_sample=True).save_pretrained(hf)
    (hf / "README.md").write_text(CARD, encoding="utf-8")
    for dtype in DTYPES:
        print(convert(hf, folder / f"{NAME}-{dtype}.gguf", dtype, overwrite=True))


def evaluate(held_out: list[list[str]], folder: Path) -> None:
    """Print the perplexity of the held-out text by PyTorch and by hotshoe for each file; write a part of the text."""
    import hotshoe

    hf = folder / "hf"
    tokenizer = Tokenizer.from_file(str(hf / "tokenizer.json"))
    model = LlamaForCausalLM.from_pretrained(hf, dtype=torch.float32)
    texts, part = windows(held_out, tokenizer), windows(held_out[::8], tokenizer)
    (folder / "kjv-held-out.txt").write_text("\n\n".join(part) + "\n", encoding="utf-8")
    for name, some in (("kjv-held-out.txt", part), ("all that is held out", texts)):
        ids = [tokenizer.encode(text).ids for text in some]
        perplexity = math.exp(mean_loss(model, ids))
        print(f"{name}: {len(ids)} texts, {sum(map(len, ids)):,} tokens; PyTorch, float32: {perplexity:.4f}")
    for dtype in DTYPES:
        path = folder / f"{NAME}-{dtype}.gguf"
        with hotshoe.load_model(path) as loaded:
            scores = [loaded.score(text) for text in texts]
        nats = -sum(s.log_likelihood for s in scores) / sum(s.n_tokens - 1 for s in scores)
        print(f"hotshoe, {dtype}: {math.exp(nats):.4f} ({path.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
