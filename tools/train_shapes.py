"""Make examples/models/shapes-q8_0.gguf and its encoder: a tiny Qwen2-VL that says which shapes a picture shows.

    python tools/train_shapes.py work/        20 minutes on 2 idle cores; can be resumed

It writes work/hf, a Hugging Face folder, and from it, with hotshoe's converter, work/shapes-{f32,f16,q8_0}.gguf and
work/mmproj-shapes-{f32,f16}.gguf. It needs PyTorch, transformers, tokenizers and Pillow (pip install --group oracles).

examples/shapes.py draws the pictures: one or two shapes on a plain background. The model is measured on others, drawn
with seeds that training never uses.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from shapes import ANSWERS, SIDE, Scene, draw, random_scene

BATCH, STEPS, LEARNING_RATE, WARM_UP = 48, 1200, 2e-3, 100
N_TEST, FIRST_TEST = 500, 10**9  # scenes that are measured, and the seed of the first
PATCH, MERGE = 14, 2
GRID = SIDE // PATCH
ROWS = (GRID // MERGE) ** 2
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CARD = """---
model_name: Shapes
license: mit
language: [en]
description: A Qwen2-VL of 0.9 million parameters that says which shapes a picture shows; made for trying hotshoe out.
---
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the model that reads pictures and that hotshoe ships.")
    parser.add_argument("folder", type=Path, help="the folder for all results")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of {BATCH} pictures each")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    train(args.folder, args.steps)


def turn(question: str, *, picture: bool) -> str:
    """What stands before an answer. The first question of a conversation comes with the picture."""
    shown = "<|vision_start|>" + "<|image_pad|>" * ROWS + "<|vision_end|>" if picture else ""
    return f"<|im_start|>user\n{shown}{question}<|im_end|>\n<|im_start|>assistant\n"


def make_tokenizer(folder: Path) -> Tokenizer:
    """Train a byte-level BPE on questions and answers; it splits words as Qwen2's does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    texts = []
    for seed in range(400):
        scene = random_scene(random.Random(seed))
        texts += [f"{question}\n{answer(scene)}" for question, answer in ANSWERS.items()]
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE,
        model_max_length=512,
    ).save_pretrained(folder)  # fmt: skip
    return tokenizer


def make_model(tokenizer: Tokenizer) -> Qwen2VLForConditionalGeneration:
    id_of = tokenizer.token_to_id
    text = {
        "vocab_size": tokenizer.get_vocab_size(), "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3,
        "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": id_of("<|im_end|>"),
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
    }  # fmt: skip
    vision = {"depth": 3, "embed_dim": 96, "hidden_size": 96, "num_heads": 3, "mlp_ratio": 2, "patch_size": PATCH}
    config = Qwen2VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=True, image_token_id=id_of("<|image_pad|>"),
        video_token_id=id_of("<|video_pad|>"), vision_start_token_id=id_of("<|vision_start|>"),
        vision_end_token_id=id_of("<|vision_end|>"), eos_token_id=id_of("<|im_end|>"),
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2VLForConditionalGeneration(config)
    with torch.no_grad():  # transformers' weights are as small as in models that are a hundred times wider
        for name, value in model.named_parameters():
            if value.ndim > 1:
                value.normal_(0, 0.1 if "embed_tokens" in name else 0.8 / math.prod(value.shape[1:]) ** 0.5)
    return model


def pixels_of(scenes: list[Scene], processor: Qwen2VLImageProcessorPil) -> torch.Tensor:
    """What the processor makes of the pictures: (pictures * patches, 3 * 2 * PATCH ** 2)."""
    raw = np.stack([np.asarray(draw(scene), np.float32) for scene in scenes]) / 255
    values = (raw - np.asarray(processor.image_mean, np.float32)) / np.asarray(processor.image_std, np.float32)
    cells = GRID // MERGE
    parts = values.reshape(len(scenes), cells, MERGE, PATCH, cells, MERGE, PATCH, 3)
    ordered = parts.transpose(0, 1, 4, 2, 5, 7, 3, 6).reshape(-1, 3, 1, PATCH * PATCH)
    return torch.from_numpy(ordered.repeat(2, axis=2).reshape(len(ordered), -1))


def positions_of(n: int, start: int) -> torch.Tensor:
    """The positions of a text whose picture begins at token ``start``: (3, n)."""
    side = GRID // MERGE
    positions = torch.arange(n).repeat(3, 1)
    cells = torch.arange(ROWS)
    positions[:, start : start + ROWS] = start + torch.stack([torch.zeros_like(cells), cells // side, cells % side])
    positions[:, start + ROWS :] = torch.arange(n - start - ROWS) + start + side
    return positions


def batch_of(asked: list[tuple[Scene, list[str]]], tokenizer: Tokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    """Conversations about scenes, one question after the other: token ids, and the targets: -100 outside answers."""
    texts = []
    for scene, questions in asked:
        ids: list[int] = []
        targets: list[int] = []
        for i, question in enumerate(questions):
            before = tokenizer.encode(("\n" if i else "") + turn(question, picture=not i)).ids
            after = tokenizer.encode(ANSWERS[question](scene) + "<|im_end|>").ids
            ids += before + after
            targets += [-100] * len(before) + after
        texts.append((ids, targets))
    n, pad = max(len(ids) for ids, _ in texts), tokenizer.token_to_id("<|endoftext|>")
    padded = torch.full((len(texts), n), pad)
    wanted = torch.full((len(texts), n), -100)
    for i, (ids, targets) in enumerate(texts):
        padded[i, : len(ids)], wanted[i, : len(ids)] = torch.tensor(ids), torch.tensor(targets)
    return padded, wanted


def logits_of(model: Qwen2VLForConditionalGeneration, ids: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    marker = model.config.image_token_id
    start = int((ids[0] == marker).nonzero()[0])
    return model(
        input_ids=ids, pixel_values=pixels, image_grid_thw=torch.tensor([[1, GRID, GRID]] * len(ids)),
        mm_token_type_ids=(ids == marker).int(), use_cache=False,
        position_ids=positions_of(ids.shape[1], start)[:, None].expand(-1, len(ids), -1),
    ).logits  # fmt: skip


def train(folder: Path, steps: int) -> None:
    hf, checkpoint = folder / "hf", folder / "checkpoint.pt"
    tokenizer = make_tokenizer(hf)
    model, processor = make_model(tokenizer), Qwen2VLImageProcessorPil(min_pixels=8 * 28 * 28, max_pixels=256 * 28 * 28)
    print(f"{model.num_parameters():,} parameters, {tokenizer.get_vocab_size()} tokens", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.02)
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        first = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    questions, began = list(ANSWERS), time.perf_counter()
    for step in range(first, steps):
        draws = [random.Random(step * BATCH + i) for i in range(BATCH)]  # the same after a break
        asked = [(random_scene(d), d.sample(questions, len(questions))) for d in draws]
        rate = min(1.0, (step + 1) / WARM_UP) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * rate
        ids, targets = batch_of(asked, tokenizer)
        logits = logits_of(model, ids, pixels_of([scene for scene, _ in asked], processor))
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), ignore_index=-100
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 49:
            seconds = (time.perf_counter() - began) / (step + 1 - first)
            print(f"step {step + 1}: loss {loss.item():.3f}, {seconds:.2f} s a step", flush=True)
        if step % 250 == 249 or step + 1 == steps:
            state = {"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, checkpoint)
            print(f"step {step + 1}: right answers {measure(model, tokenizer, processor, 200)}", flush=True)
    finish(model, processor, folder)


@torch.no_grad()
def measure(
    model: Qwen2VLForConditionalGeneration, tokenizer: Tokenizer, processor: Qwen2VLImageProcessorPil, n: int
) -> dict[str, float]:
    """The share of answers of which every token is the most likely one, by question."""
    found = {}
    for question in ANSWERS:
        asked = [(random_scene(random.Random(FIRST_TEST + i)), [question]) for i in range(n)]
        ids, targets = batch_of(asked, tokenizer)
        best = logits_of(model, ids, pixels_of([scene for scene, _ in asked], processor))[:, :-1].argmax(-1)
        right = (best == targets[:, 1:]) | (targets[:, 1:] == -100)
        found[question] = round(right.all(1).float().mean().item(), 3)
    return found


def finish(model: Qwen2VLForConditionalGeneration, processor: Qwen2VLImageProcessorPil, folder: Path) -> None:
    """Write the Hugging Face folder, and the files."""
    from hotshoe.convert import convert

    hf = folder / "hf"
    model.save_pretrained(hf)
    processor.save_pretrained(hf)
    (hf / "README.md").write_text(CARD, encoding="utf-8")
    assert json.loads((hf / "config.json").read_text())
    for dtype in ("f32", "f16", "q8_0"):
        convert(hf, folder / f"shapes-{dtype}.gguf", dtype, overwrite=True)
    for dtype in ("f32", "f16"):
        convert(hf, folder / f"mmproj-shapes-{dtype}.gguf", dtype, projector=True, overwrite=True)


if __name__ == "__main__":
    main()
