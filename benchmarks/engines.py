"""The process of an engine. benchmarks/generate.py sends it lines of JSON, and gets one line for each.

    PYTHON benchmarks/engines.py hotshoe|llama.cpp|mlx-lm '{"file": "F.gguf", "threads": 2, "n_ctx": 545, …}'

Runs under any Python that has the engine; it needs only the engine, NumPy and the standard library. A call is
``["prompt", 512]``, ``["fresh", 512]``, ``["decode", 512, 32]``, ``["many", 128, 32]``, ``["write", 512, 32]``,
``["start", 512, 32]`` or ``["look", 640, 480]``. The answer has a number for each measured value.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

clock = time.perf_counter
QUESTION = "What is this?"
Answer = dict[str, float]


class Hotshoe:
    """hotshoe, as a user loads it."""

    def __init__(
        self,
        file: str,
        threads: int,
        n_ctx: int,
        sequences: int = 1,
        device: str = "cpu",
        kv_dtype: str = "f16",
        projector: str | None = None,
    ) -> None:
        import hotshoe

        self.model: Any = hotshoe.load_model(
            file,
            device,
            n_ctx=n_ctx,
            n_threads=threads if device == "cpu" else None,
            n_sequences=sequences,
            kv_dtype=kv_dtype,
            projector=projector or False,
            max_draft=0,  # a text of random weights may repeat itself: benchmarks/drafting.py measures that
        )
        self.n_sequences = sequences
        self.n_vocab: int = self.model.tokenizer.vocab_size
        self.kept: list[Any] = []

    def drop(self) -> None:
        for sequence in self.kept:
            sequence.close()
        self.kept = []
        self.model.forget()

    def prompt(self, n: int) -> Answer:
        self.drop()
        [tokens] = draw(self.n_vocab, 1, n)
        with self.model.sequence() as sequence:
            start = clock()
            sequence.append(*tokens)
            return {"prompt": n / (clock() - start)}

    def decode(self, depth: int, steps: int) -> Answer:
        return {"decode": self._write(1, depth, steps)}

    def many(self, depth: int, steps: int) -> Answer:
        return {"many": self._write(self.n_sequences, depth, steps)}

    def _write(self, n: int, depth: int, steps: int) -> float:
        """Tokens per second of ``n`` sequences after ``depth`` tokens each. Keeps the sequences for the next call."""
        rows = draw(self.n_vocab, n, depth + steps)
        if [len(sequence) for sequence in self.kept] != [depth] * n:
            self.drop()
            self.kept = [self.model.sequence() for _ in rows]
            self.model.extend((s, row[:depth]) for s, row in zip(self.kept, rows))
        start = clock()
        for i in range(depth, depth + steps):
            self.model.extend((s, [row[i]]) for s, row in zip(self.kept, rows))
        seconds = clock() - start
        for sequence in self.kept:
            sequence.truncate(depth)
        return n * steps / seconds

    def write(self, depth: int, steps: int) -> Answer:
        """Greedy texts of all sequences, as a user reads them. Empty if a text ends early."""
        self.drop()
        rows = draw(self.n_vocab, self.n_sequences, depth)
        streams = [self.model.stream(row, max_tokens=steps + 1, temperature=0) for row in rows]
        for stream in streams:
            stream.start()
        for stream in streams:
            stream.advance()
        start = clock()
        for _ in range(steps):
            for stream in streams:
                stream.advance()
        seconds = clock() - start
        done = all(stream.completion.finish_reason == "length" for stream in streams)
        return {"write": self.n_sequences * steps / seconds} if done else {}

    def generate(self, depth: int, steps: int) -> Answer:
        """The speed of ``generate`` (default filters, text, stop texts), as a share of the plain loop's."""
        self.drop()
        [tokens] = draw(self.n_vocab, 1, depth)
        done = self.model.generate(tokens, max_tokens=steps + 1, seed=0, stop=["nowhere in the text"])
        if done.finish_reason != "length":
            return {}
        return {"generate": steps / done.decode_seconds / self._write(1, depth, steps)}

    def look(self, width: int, height: int) -> Answer:
        self.drop()
        pixels = draw_picture(width, height)
        start = clock()
        self.model.images.items("", [pixels], add_special=False)  # the rows are kept, and found again below
        encoded = clock()
        self.model.generate(QUESTION, images=[pixels], max_tokens=1, temperature=0)
        return {"look": clock() - start, "encode": encoded - start, "peak": peak_bytes()}

    def compiled(self) -> Answer:
        return {"compiled": self.model.backend.counters.compiled}

    def first(self) -> None:
        self.model.generate("The quick brown fox jumps", max_tokens=1, temperature=0)


def open_cuda() -> None:
    """Open CUDA's libraries from NVIDIA's wheels, if there are any: libggml-cuda.so needs them."""
    for name in ("cudart", "cublasLt", "cublas"):
        for path in itertools.chain.from_iterable(Path(p).glob(f"nvidia/*/lib/lib{name}.so.*") for p in sys.path):
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
            break


class LlamaCpp:
    """llama.cpp, by the low-level interface of llama-cpp-python, which costs no time of its own."""

    def __init__(
        self,
        file: str,
        threads: int,
        n_ctx: int,
        sequences: int = 1,
        flash: bool = True,
        repack: bool = True,
        kv_dtype: str = "f16",
        library: str | None = None,
        projector: str | None = None,
    ) -> None:
        """library: the path of a device's library, such as libggml-cuda.so; all layers are then on its device."""
        import llama_cpp as l

        self.l: Any = l
        self.quiet = l.llama_log_callback(lambda *_: None)
        l.llama_log_set(self.quiet, None)
        if library:
            open_cuda()
            # By this name it is the library that libllama uses. A wheel has several copies, each with its own devices.
            load = ctypes.CDLL("libggml.so.0").ggml_backend_load
            load.argtypes, load.restype = [ctypes.c_char_p], ctypes.c_void_p
            if not load(library.encode()):
                raise SystemExit(f"llama.cpp's ggml does not load {library}")
            if not l.llama_supports_gpu_offload():
                raise SystemExit(f"llama.cpp finds no device of {library}")
        l.llama_backend_init()
        of_model: Any = l.llama_model_default_params()
        of_model.n_gpu_layers = 999 if library else 0
        of_model.use_extra_bufts = repack
        params: Any = l.llama_context_default_params()
        params.n_ctx, params.n_seq_max = sequences * n_ctx, sequences
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = int(flash)
        params.type_k = params.type_v = getattr(l, f"GGML_TYPE_{kv_dtype.upper()}")
        self.model: Any = l.llama_model_load_from_file(file.encode(), of_model)
        self.context: Any = l.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit(f"llama.cpp does not load {file}")
        self.memory: Any = l.llama_get_memory(self.context)
        self.vocab: Any = l.llama_model_get_vocab(self.model)
        self.n_vocab: int = l.llama_vocab_n_tokens(self.vocab)
        self.n_sequences = sequences
        self.on_device = bool(library)
        self.n_batch: int = params.n_batch
        self.batch: Any = l.llama_batch_init(max(sequences, self.n_batch), 0, 1)
        self.kept = (0, 0)  # sequences, tokens of each
        self.tower: Any = self._open_tower(projector, threads, flash) if projector else None

    def _open_tower(self, path: str, threads: int, flash: bool) -> Any:
        from llama_cpp import mtmd_cpp

        self.m: Any = mtmd_cpp
        self.m.mtmd_log_set(self.quiet, None)
        self.m.mtmd_helper_log_set(self.quiet, None)
        params = self.m.mtmd_context_params_default()
        params.use_gpu, params.n_threads, params.flash_attn_type, params.warmup = False, threads, int(flash), False
        return self.m.mtmd_init_from_file(path.encode(), self.model, params)

    def read(self, tokens: list[int]) -> None:
        """Append to the only sequence, and wait for the logits of the last token."""
        for at in range(0, len(tokens), self.n_batch):
            part = tokens[at : at + self.n_batch]
            array = (self.l.llama_token * len(part))(*part)  # the batch points into it
            self._run(self.l.llama_batch_get_one(array, len(part)))

    def _step(self, tokens: list[int], position: int) -> None:
        """Compute one token of each sequence, with its logits."""
        self._compute([(token, i, position, True) for i, token in enumerate(tokens)])

    def _compute(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Compute tokens, each with its sequence and position, and whether its logits are wanted."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, sequence, position, logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, logits
        self._run(batch)

    def _run(self, batch: Any) -> None:
        if self.l.llama_decode(self.context, batch):
            raise SystemExit("llama_decode failed")
        self.l.llama_synchronize(self.context)

    def prompt(self, n: int) -> Answer:
        self.l.llama_memory_clear(self.memory, True)
        self.kept = (0, 0)
        [tokens] = draw(self.n_vocab, 1, n)
        start = clock()
        self.read(tokens)
        return {"prompt": n / (clock() - start)}

    def decode(self, depth: int, steps: int) -> Answer:
        return {"decode": self._write(1, depth, steps)}

    def many(self, depth: int, steps: int) -> Answer:
        return {"many": self._write(self.n_sequences, depth, steps)}

    def _write(self, n: int, depth: int, steps: int) -> float:
        rows = draw(self.n_vocab, n, depth + steps)
        if self.kept != (n, depth):
            self.l.llama_memory_clear(self.memory, True)
            prompts = [(row[i], s, i, i == depth - 1) for s, row in enumerate(rows) for i in range(depth)]
            for at in range(0, len(prompts), self.n_batch):
                self._compute(prompts[at : at + self.n_batch])
            self.kept = (n, depth)
        start = clock()
        for i in range(depth, depth + steps):
            self._step([row[i] for row in rows], i)
        seconds = clock() - start
        removed = [self.l.llama_memory_seq_rm(self.memory, i, depth, -1) for i in range(n)]
        if not all(removed):  # a recurrent state cannot be shortened
            self.kept = (0, 0)
        return n * steps / seconds

    def write(self, depth: int, steps: int) -> Answer:
        """Greedy texts of all sequences. A device chooses the tokens itself, which llama.cpp calls backend sampling."""
        n, lib = self.n_sequences, self.l
        self.kept = (0, 0)
        self._write(n, depth, 0)  # reads the prompts
        self.kept = (0, 0)
        chains = []
        for i in range(n if self.on_device else 0):
            chains.append(lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params()))
            lib.llama_sampler_chain_add(chains[i], lib.llama_sampler_init_greedy())
            if not lib.llama_set_sampler(self.context, i, chains[i]):
                raise SystemExit("llama.cpp cannot sample on this device")
        self._step([1] * n, depth)
        start = clock()
        for i in range(depth + 1, depth + 1 + steps):
            self._step([self._best(row) for row in range(n)], i)
        seconds = clock() - start
        for i, chain in enumerate(chains):
            lib.llama_set_sampler(self.context, i, None)
            lib.llama_sampler_free(chain)
        return {"write": n * steps / seconds}

    def _best(self, row: int) -> int:
        """The best token of a row of the last graph."""
        if self.on_device:
            return int(self.l.llama_get_sampled_token_ith(self.context, row))
        import numpy as np

        logits = self.l.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(logits, (self.n_vocab,)).argmax())

    def look(self, width: int, height: int) -> Answer:
        m = self.m
        self.l.llama_memory_clear(self.memory, True)
        pixels = draw_picture(width, height)
        start = clock()
        bitmap = m.mtmd_bitmap_init(width, height, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
        chunks = m.mtmd_input_chunks_init()
        prompt = m.mtmd_default_marker() + QUESTION.encode()
        text = m.mtmd_input_text(prompt, len(prompt), False, True)
        if m.mtmd_tokenize(self.tower, chunks, ctypes.byref(text), (m.mtmd_bitmap_p_ctypes * 1)(bitmap), 1):
            raise SystemExit("mtmd_tokenize failed")
        prepared = clock() - start
        past, n_chunks, seconds = self.l.llama_pos(0), m.mtmd_input_chunks_size(chunks), 0.0
        for i in range(n_chunks):
            chunk = m.mtmd_input_chunks_get(chunks, i)
            if m.mtmd_input_chunk_get_type(chunk) == 0:
                last = i == n_chunks - 1
                failed = m.mtmd_helper_eval_chunk_single(
                    self.tower, self.context, chunk, past, 0, self.n_batch, last, ctypes.byref(past)
                )
            else:
                before = clock()
                failed = m.mtmd_encode_chunk(self.tower, chunk)
                seconds += clock() - before
                rows = m.mtmd_get_output_embd(self.tower)
                failed = failed or m.mtmd_helper_decode_image_chunk(
                    self.tower,
                    self.context,
                    chunk,
                    rows,
                    past,
                    0,
                    self.n_batch,
                    ctypes.byref(past),
                    m.mtmd_helper_post_decode_callback(),
                    None,
                )
            if failed:
                raise SystemExit("mtmd failed")
        sampler = self.l.llama_sampler_init_greedy()
        self.l.llama_sampler_sample(sampler, self.context, -1)
        answer = {"look": clock() - start, "encode": prepared + seconds, "peak": peak_bytes()}
        self.l.llama_sampler_free(sampler)
        m.mtmd_bitmap_free(bitmap)
        m.mtmd_input_chunks_free(chunks)
        return answer

    def first(self) -> None:
        text = b"The quick brown fox jumps"
        tokens = (self.l.llama_token * len(text))()
        n = self.l.llama_tokenize(self.vocab, text, len(text), tokens, len(text), True, True)
        self.read(list(tokens[:n]))
        sampler = self.l.llama_sampler_init_greedy()
        token = self.l.llama_sampler_sample(sampler, self.context, -1)
        piece = (ctypes.c_char * 64)()
        self.l.llama_token_to_piece(self.vocab, token, piece, 64, 0, True)


class MlxLm:
    """mlx-lm's model class, with random 4-bit weights in groups of 32."""

    def __init__(self, sizes: dict[str, Any], unit: str, dtype: str, **_: Any) -> None:
        import mlx.core as mx
        from mlx import nn
        from mlx_lm.models import cache, qwen2

        mx.set_default_device(getattr(mx, unit))
        self.mx: Any = mx
        self.make_cache: Any = cache.make_prompt_cache
        self.model: Any = qwen2.Model(qwen2.ModelArgs(model_type="qwen2", **sizes))
        self.model.set_dtype(getattr(mx, dtype))
        nn.quantize(self.model, group_size=32, bits=4)
        mx.eval(self.model.parameters())
        self.n_vocab: int = sizes["vocab_size"]

    def prompt(self, n: int) -> Answer:
        [tokens] = draw(self.n_vocab, 1, n)
        start = clock()
        self.read(tokens)
        return {"prompt": n / (clock() - start)}

    def decode(self, depth: int, steps: int) -> Answer:
        [tokens] = draw(self.n_vocab, 1, depth + steps)
        kept = self.read(tokens[:depth])
        start = clock()
        for token in tokens[depth:]:
            self.step(token, kept)
        return {"decode": steps / (clock() - start)}

    def write(self, depth: int, steps: int) -> Answer:
        """A greedy text, by mlx-lm's own loop, which computes a token while the one before is read."""
        from mlx_lm.generate import generate_step

        [tokens] = draw(self.n_vocab, 1, depth)
        with self.mx.stream(self.mx.default_device()):
            written = generate_step(self.mx.array(tokens), self.model, max_tokens=steps + 1)
            next(written)
            start = clock()
            n = sum(1 for _ in written)
            return {"write": n / (clock() - start)}

    def read(self, tokens: list[int]) -> Any:
        kept = self.make_cache(self.model)
        self.model(self.mx.array([tokens[:-1]]), cache=kept)  # like mlx-lm's generate: only the last token's logits
        self.mx.eval([layer.state for layer in kept])
        self.step(tokens[-1], kept)
        return kept

    def step(self, token: int, kept: Any) -> None:
        import numpy as np

        np.array(self.model(self.mx.array([[token]]), cache=kept)[0, -1].astype(self.mx.float32))


def draw(n_vocab: int, n: int, length: int) -> list[list[int]]:
    """Draw the same tokens each time, but different ones for each sequence: a common prefix would be computed once."""
    import numpy as np

    rows: list[list[int]] = np.random.default_rng(0).integers(0, n_vocab - 1, (n, length)).tolist()
    return rows


def draw_picture(width: int, height: int) -> Any:
    """Draw random pixels, (height, width, 3) uint8, other ones at each call."""
    import numpy as np

    return np.random.default_rng().integers(0, 256, (height, width, 3), np.uint8)


def peak_bytes() -> int:
    """The largest resident size of this process until now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


ENGINES = {"hotshoe": Hotshoe, "llama.cpp": LlamaCpp, "mlx-lm": MlxLm}


def main() -> int:
    start = clock()
    del sys.path[0]  # this folder: the mlx_lm in it is not the package
    kind, options = ENGINES[sys.argv[1]], json.loads(sys.argv[2])
    engine: Any = kind(**options)
    loaded = clock()
    for line in sys.stdin:
        name, *sizes = json.loads(line)
        if name == "fresh":
            engine.first()
            answer = {"fresh": engine.prompt(*sizes)["prompt"]}
        elif name == "start":
            engine.first()
            answer = {"first": clock() - start, "load": loaded - start}
            engine.prompt(sizes[0])
            engine.decode(*sizes)
            answer["peak"] = peak_bytes()
        else:
            answer = getattr(engine, name)(*sizes)
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
