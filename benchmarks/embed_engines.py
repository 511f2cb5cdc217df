"""The process of an engine that embeds texts. benchmarks/embed.py sends it lines of JSON, and gets one for each.

    PYTHON benchmarks/embed_engines.py hotshoe|pytorch|onnxruntime|openvino '{"folder": "…", "threads": 2, …}'

A call is ``["embed", [texts]]``, which is answered with the seconds it took, or ``["vectors", [texts]]``, which is
answered with the vectors. The peers do what sentence-transformers does: sort by length, pad, mean over the tokens,
length 1. Tokenization is part of the time.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Array = Any
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Hotshoe:
    """A GGUF of the model, as a user loads it."""

    def __init__(self, file: str, threads: int, batch: int, device: str, precision: str) -> None:
        import hotshoe

        options: Any = {"n_threads": threads, "matmul_precision": precision}
        self.model: Any = hotshoe.load_model(file, device, **options)
        self.batch = batch

    def embed(self, texts: list[str]) -> Array:
        return self.model.embed(texts, batch_size=self.batch)


class Peer:
    """What all peers share. ``hidden`` returns the last layer of a batch, (texts, tokens, width)."""

    def __init__(self, folder: str, threads: int, batch: int) -> None:
        from transformers import AutoTokenizer, BertModel
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
        self.threads, self.batch = threads, batch

    def embed(self, texts: list[str]) -> Array:
        import numpy as np

        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        parts = []
        for start in range(0, len(order), self.batch):
            rows = [texts[i] for i in order[start : start + self.batch]]
            inputs = self.tokenizer(rows, padding=True, truncation=True, return_tensors="np")
            hidden = self.hidden({name: inputs[name] for name in INPUTS})
            mask = inputs["attention_mask"][..., None].astype(np.float32)
            mean = (hidden * mask).sum(1) / mask.sum(1)
            parts.append(mean / np.linalg.norm(mean, axis=1, keepdims=True))
        out = np.empty((len(texts), parts[0].shape[1]), np.float32)
        out[order] = np.concatenate(parts)
        return out

    def hidden(self, inputs: Mapping[str, Array]) -> Array:
        raise NotImplementedError

    def traceable(self) -> tuple[Any, tuple[Any, ...]]:
        """The model as a function of INPUTS, and example inputs."""
        import torch

        class Hidden(torch.nn.Module):
            def __init__(self, model: Any) -> None:
                super().__init__()
                self.model = model

            def forward(self, ids: Any, mask: Any, types: Any) -> Any:
                return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state

        self.model.set_attn_implementation("eager")  # the fusions of exporters expect the plain products
        example = self.tokenizer(["one text", "another one"], padding=True, return_tensors="pt")
        return Hidden(self.model), tuple(example[name] for name in INPUTS)


class PyTorch(Peer):
    """transformers' BertModel with its fused attention; in bfloat16 by autocast."""

    def __init__(self, dtype: str, **options: Any) -> None:
        super().__init__(**options)
        import torch

        torch.set_num_threads(self.threads)
        self.torch: Any = torch
        self.bf16 = dtype == "bf16"

    def hidden(self, inputs: Mapping[str, Array]) -> Array:
        torch = self.torch
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
            tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
            return self.model(**tensors).last_hidden_state.float().numpy()


class OnnxRuntime(Peer):
    """With all graph optimizations of the runtime; ``fused``: after its offline optimizer for BERT."""

    def __init__(self, dtype: str, fused: bool, **options: Any) -> None:
        super().__init__(**options)
        import onnx
        import onnxruntime
        import torch
        from onnxruntime.quantization import QuantType, quantize_dynamic
        from onnxruntime.transformers.optimizer import optimize_model

        function, example = self.traceable()
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "f32.onnx"
            axes = {name: {0: "batch", 1: "tokens"} for name in (*INPUTS, "hidden")}
            names: dict[str, Any] = {"input_names": list(INPUTS), "output_names": ["hidden"], "dynamic_axes": axes}
            torch.onnx.export(function, example, str(path), opset_version=17, dynamo=False, **names)
            if fused:
                config = self.model.config
                heads, width = config.num_attention_heads, config.hidden_size
                optimized = optimize_model(str(path), model_type="bert", num_heads=heads, hidden_size=width)
                path = Path(scratch) / "fused.onnx"
                optimized.save_model_to_file(str(path))
            if dtype == "int8":
                source, path = path, Path(scratch) / "int8.onnx"
                extra = {"DefaultTensorType": onnx.TensorProto.FLOAT}  # where its shape inference fails
                quantize_dynamic(source, path, weight_type=QuantType.QInt8, per_channel=True, extra_options=extra)
            settings: Any = onnxruntime.SessionOptions()
            settings.intra_op_num_threads = self.threads
            settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
            self.session: Any = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])

    def hidden(self, inputs: Mapping[str, Array]) -> Array:
        return self.session.run(["hidden"], dict(inputs))[0]


class OpenVino(Peer):
    """The model, converted from PyTorch and compiled for latency."""

    def __init__(self, dtype: str, **options: Any) -> None:
        super().__init__(**options)
        import openvino

        core: Any = openvino.Core()
        if dtype == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise SystemExit("OpenVINO does not compute in bf16 on this CPU")
        function, example = self.traceable()
        settings = {
            "INFERENCE_NUM_THREADS": self.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": dtype,
        }
        self.compiled: Any = core.compile_model(
            openvino.convert_model(function, example_input=example), "CPU", settings
        )

    def hidden(self, inputs: Mapping[str, Array]) -> Array:
        return self.compiled([inputs[name] for name in INPUTS])[0]


ENGINES = {"hotshoe": Hotshoe, "pytorch": PyTorch, "onnxruntime": OnnxRuntime, "openvino": OpenVino}


def main() -> int:
    warnings.simplefilter("ignore")  # of the exporters
    answers, sys.stdout = sys.stdout, sys.stderr  # some of them print
    engine: Any = ENGINES[sys.argv[1]](**json.loads(sys.argv[2]))
    for line in sys.stdin:
        name, texts = json.loads(line)
        start = time.perf_counter()
        vectors = engine.embed(texts)
        seconds = time.perf_counter() - start
        answer = {"seconds": seconds} if name == "embed" else {"vectors": vectors.tolist()}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
