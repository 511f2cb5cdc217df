"""GGUFFile compared with gguf.GGUFWriter, gguf.GGUFReader and a plain loop. Hostile files: test_gguf_hostile.py."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe_core.errors import ClosedError, DTypeError, ModelFileError
from hotshoe_core.gguf import GGUFArray, GGUFFile, MetadataKeyError, ValueType
from hotshoe_core.tensors.dtypes import DType
from tests.support.gguf_files import array, gguf_bytes, key, put, tensor, text, write_gguf
from tests.support.vocabulary_files import vocabulary_file

Endian = gguf.GGUFEndian
Quant = gguf.GGMLQuantizationType


# --- honest files ---------------------------------------------------------------------------------------------------


def test_dtypes_agree_with_the_gguf_package() -> None:
    ours = {d.id: (d.name, d.block_size, d.block_bytes) for d in DType}
    theirs = {q.value: (q.name, *sizes) for q, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert theirs.items() <= ours.items()


@pytest.mark.parametrize("endian", Endian)
def test_metadata_round_trip(tmp_path: Path, endian: gguf.GGUFEndian) -> None:
    scalars = {
        "uint8": 255,
        "int8": -128,
        "uint16": 65535,
        "int16": -32768,
        "uint32": 2**32 - 1,
        "int32": -(2**31),
        "uint64": 2**64 - 1,
        "int64": -(2**63),
        "float32": 0.5,
        "float64": 1e-300,
        "bool": True,
    }
    words = ["", "a", "ünï", "token\0with nul", "x" * 255, "y" * 256, "z" * 70_000, "🙂"]
    arrays = {
        "strings": words * 3,
        "one empty": [""],
        "ints": [1, -2, 3],
        "floats": [0.5, -1.5],
        "bools": [True, False, True],
        "nested": [["a", ""], ["b"]],
        "deeper": [[[1, 2], [3]], [[4]]],
        "bytes": b"\x00\xff",
    }

    def setup(w: gguf.GGUFWriter) -> None:
        for name, value in scalars.items():
            getattr(w, f"add_{name}")(name, value)
        for name, items in arrays.items():
            w.add_array(name, items)
        w.add_string("text", "a long text\n" * 10_000)

    path = write_gguf(tmp_path / "x.gguf", setup=setup, endianess=endian)
    with GGUFFile(path) as f:
        m = f.metadata
        assert f.big_endian == (endian is Endian.BIG)
        assert f.version == 3
        assert f.alignment == 32
        assert f.architecture == m["general.architecture"] == "llama"
        for name, value in scalars.items():
            assert m[name] == value
            assert type(m[name]) is type(value)
            assert m.value_type(name) is ValueType[name.upper()]
        for name, items in arrays.items():
            assert len(m[name]) == len(items)
            assert m[name].tolist() == list(items)
            assert m[name] == list(items)
        assert list(m)[1:] == [*scalars, *arrays, "text"]
        assert len(m) == len(list(m))
        assert m["text"] == "a long text\n" * 10_000
        assert m["strings"].raw() == [w.encode() for w in words * 3]
        for read in (m["ints"].raw, m["ints"].packed):
            with pytest.raises(DTypeError, match="'ints' is an array of i32; expected strings"):
                read()
        assert m["ints"][1] == -2
        assert m["ints"][1:] == [-2, 3]
        assert m["bools"][0] is True
        assert m["strings"][1] == "a"
        assert m["ints"].numpy().dtype.kind == "i"
        assert not m["bools"].numpy().flags.writeable
        assert "strings" in m
        assert "nothing" not in m
        assert m.get("nothing") is None
        assert repr(m["strings"]) == "<GGUFArray of 24 str>"


def test_keys_that_were_not_read(tmp_path: Path) -> None:
    def setup(w: gguf.GGUFWriter) -> None:
        for name in ("asked", "got", "listed", "required", "typed", "other"):
            w.add_array(f"llama.{name}", [1, 2]) if name == "listed" else w.add_uint32(f"llama.{name}", 7)

    with GGUFFile(write_gguf(tmp_path / "x.gguf", setup=setup)) as f:
        assert list(f.metadata.arch.unread) == ["asked", "got", "listed", "required", "typed", "other"]
        arch = f.metadata.arch
        assert "asked" in arch
        assert arch.get("got", 0) == 7
        assert arch.per_layer("listed", 2, int) == [1, 2]
        assert f.metadata.scope("llama").require("required", int) == 7
        assert f.metadata.value_type("llama.typed") is ValueType.UINT32  # says nothing about the value
        assert set(f.metadata) > {"llama.other"}
        assert arch.get("missing", 3) == 3
        assert f.metadata.arch.unread == {"typed": 7, "other": 7}
        assert f.metadata.unread.keys() >= {"llama.typed", "llama.other"}


@pytest.mark.parametrize("endian", Endian)
def test_plain_tensors(tmp_path: Path, endian: gguf.GGUFEndian) -> None:
    rng = np.random.default_rng(0)
    kinds = (np.float32, np.float16, np.float64, np.int8, np.int16, np.int32, np.int64)
    tensors = {np.dtype(k).name: (100 * rng.standard_normal((2, 3, 5))).astype(k) for k in kinds}
    tensors["scalar"] = np.array(7, np.float32)
    tensors["four"] = np.ones((2, 1, 3, 4), np.float32)
    with GGUFFile(write_gguf(tmp_path / "x.gguf", tensors=tensors, endianess=endian)) as f:
        assert list(f.tensors) == list(tensors)
        for name, expected in tensors.items():
            info, got = f.tensors[name], f.array(name)
            assert (info.shape, info.nbytes, info.size) == (expected.shape, expected.nbytes, expected.size)
            np.testing.assert_array_equal(got, expected)
            assert not got.flags.writeable
            assert not got.flags.owndata
            if endian is Endian.LITTLE:
                assert f.data(name).tobytes() == expected.tobytes()
                assert f.mapping()[info.offset :][: info.nbytes].tobytes() == expected.tobytes()
            else:
                with pytest.raises(ModelFileError, match="big-endian"):
                    f.data(name)


def test_a_tensor_whose_bytes_are_made(tmp_path: Path) -> None:
    """Of a file that has them in another order: what is read is what the function makes."""
    stored = np.arange(6, dtype=np.float32).reshape(3, 2)
    with GGUFFile(write_gguf(tmp_path / "x.gguf", tensors={"stored": stored})) as f:
        rows = f.data("stored").reshape(3, -1)
        info = f.tensors["stored"]._replace(name="made", shape=(2, 2), nbytes=16, made=lambda: rows[[2, 0]].reshape(-1))
        view = f.changed(f.metadata, {"made": info})
        np.testing.assert_array_equal(view.array("made"), stored[[2, 0]])
        assert view.data("made").tobytes() == stored[[2, 0]].tobytes()
        np.testing.assert_array_equal(f.array("stored"), stored)


def test_quantized_tensors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors: dict[str, Any] = {}
    for q, (block, nbytes) in gguf.GGML_QUANT_SIZES.items():
        if DType.from_id(q).numpy is None:
            tensors[q.name] = (rng.integers(0, 256, (3, max(2, 512 // block) * nbytes), np.uint8), q)
    with GGUFFile(write_gguf(tmp_path / "x.gguf", tensors=tensors)) as f:
        for name, (raw, q) in tensors.items():
            info = f.tensors[name]
            assert info.dtype.name == name
            assert info.nbytes == raw.nbytes
            assert info.shape == (3, raw.shape[1] // DType[name].block_bytes * DType[name].block_size)
            assert f.data(name).tobytes() == raw.tobytes()
            with pytest.raises(DTypeError, match=q.name):
                f.array(name)


def test_version_alignment_gaps_and_order_are_free(tmp_path: Path) -> None:
    rows = [tensor("b", [2], 0, 64), tensor("a", [3], 0, 0), tensor("empty", [0, 5], 0, 96)]
    with GGUFFile(put(tmp_path, gguf_bytes((), rows, struct.pack("<3f52x2f", 1, 2, 3, 4, 5)))) as f:
        assert f.array("a").tolist() == [1, 2, 3]
        assert f.array("b").tolist() == [4, 5]
        assert f.array("empty").shape == (5, 0)
    with GGUFFile(put(tmp_path, gguf_bytes(version=2), "v2.gguf")) as f:
        assert f.version == 2
        assert not f.tensors
        assert not f.metadata
    align = key("general.alignment", 4, struct.pack("<I", 8))
    with GGUFFile(put(tmp_path, gguf_bytes([align], [tensor("a", [1], 0, 8)], bytes(12), alignment=8), "y.gguf")) as f:
        assert f.alignment == 8
        assert f.tensors["a"].offset % 8 == 0


def test_arrays_are_lazy_and_cached(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", {"words": ["a", "b"], "more": ["c"], "numbers": [1, 2]}, {"t": np.ones(4)})
    f = GGUFFile(path)
    words, numbers, view = f.metadata["words"], f.metadata["numbers"].numpy(), f.array("t")
    assert words[0] is words[0]
    assert f.metadata["words"] is words
    f.close()
    f.close()
    assert len(f.metadata["more"]) == 1
    assert words[1] == "b"
    assert f.metadata["general.architecture"] == "llama"
    assert view.tolist() == [1] * 4
    assert numbers.tolist() == [1, 2]
    for look in (lambda: f.metadata["more"][0], lambda: f.metadata["numbers"][0], lambda: f.data("t"), f.mapping):
        with pytest.raises(ClosedError, match=r"x\.gguf is closed"):
            look()


def test_threads(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(5000)]
    with GGUFFile(write_gguf(tmp_path / "x.gguf", {"words": words})) as f, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda i: f.metadata["words"][i] == words[i], range(0, 5000, 100)))


# --- typed access ---------------------------------------------------------------------------------------------------


@pytest.fixture
def bert(tmp_path: Path) -> GGUFFile:
    keys = {"bert.block_count": 2, "bert.eps": 1e-6, "bert.heads": [4, 8], "bert.vision.size": 3, "name": "n"}
    return GGUFFile(write_gguf(tmp_path / "bert.gguf", keys, arch="bert"))


def test_typed_access(bert: GGUFFile) -> None:
    m, arch = bert.metadata, bert.metadata.arch
    assert arch.require("block_count", int) == 2
    assert arch.require("block_count", float) == 2.0
    assert arch.get("eps", 0.0) == pytest.approx(1e-6)
    assert arch.get("rope", 1e4) == 1e4
    assert arch.get("rope", None, float) is None
    assert arch.require("heads", list) == [4, 8]
    assert list(arch) == ["block_count", "eps", "heads", "vision.size"]
    assert len(arch) == 4
    assert arch.scope("vision").require("size", int) == 3
    assert m.scope("bert")["eps"] == arch["eps"]
    assert arch.per_layer("heads", 2, int) == [4, 8]
    assert arch.per_layer("block_count", 3, int) == [2, 2, 2]
    assert arch.per_layer("window", 2, int, 7) == [7, 7]


@pytest.mark.parametrize(
    ("look", "message"),
    [
        (lambda m: m.require("nam", str), r"bert\.gguf, key 'nam': .*no such key\n.*did you mean 'name'\?"),
        (lambda m: m.arch["block_coun"], r"'bert\.block_coun'.*\n.*'bert\.block_count'\?"),
        (lambda m: m.arch["name"], r"'bert\.name'.*\n.*'name', without the prefix 'bert\.'"),
        (lambda m: m.scope("clip")["x"], r"no key that begins with 'clip\.'"),
        (lambda m: m["zzz"], "hotshoe inspect"),
        (lambda m: m.require("name", int), r"key 'name': found 'n' of type str; expected int"),
        (lambda m: m.arch.get("eps", 1), r"'bert\.eps': found .* of type float; expected int"),
        (lambda m: m.arch.require("block_count", bool), "found 2 of type int; expected bool"),
        (lambda m: m.arch.require("heads", int), "found <GGUFArray of 2 i32>.*expected int"),
        (lambda m: m.arch.per_layer("heads", 3, int), "array of 2 values; expected 3, one for each layer"),
        (lambda m: m.arch.per_layer("heads", 2, str), r"heads\[0\]': found 4 of type int; expected str"),
    ],
)
def test_typed_access_errors(bert: GGUFFile, look: Any, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        look(bert.metadata)


def test_missing_key_is_a_key_error_too(bert: GGUFFile) -> None:
    with pytest.raises(KeyError) as e:
        bert.metadata["x"]
    assert isinstance(e.value, MetadataKeyError)
    assert "key 'x': the metadata has no such key" in str(e.value)


def test_unknown_tensor(tmp_path: Path) -> None:
    with (
        GGUFFile(write_gguf(tmp_path / "x.gguf", tensors={"blk.0.attn_q.weight": np.ones(1, np.float32)})) as f,
        pytest.raises(ModelFileError, match=r"no tensor 'blk\.0\.attn_q\.weigh'\n.*'blk\.0\.attn_q\.weight'"),
    ):
        f.data("blk.0.attn_q.weigh")


# --- split models ---------------------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    tensors = {f"t{i}": np.full(8, i, np.float32) for i in range(5)}
    write_gguf(tmp_path / "m.gguf", {"name": "n"}, tensors, split_max_tensors=2)
    return sorted(tmp_path.glob("m-*.gguf"))


@pytest.mark.parametrize("named", range(3))
def test_split_model_opens_from_any_file(shards: list[Path], named: int) -> None:
    with GGUFFile(shards[named]) as f:
        assert f.paths == tuple(shards)
        assert f.metadata["name"] == "n"
        assert f.architecture == "llama"
        assert [t.shard for t in f.tensors.values()] == [0, 0, 1, 1, 2]
        assert [f.array(name)[0] for name in f.tensors] == [0, 1, 2, 3, 4]
        assert f.nbytes == sum(p.stat().st_size for p in shards)


def set_u16(path: Path, key: str, value: int) -> None:
    """Change a number in a file's metadata."""
    raw = path.read_bytes()
    head, _, rest = raw.partition(key.encode() + struct.pack("<I", 2))
    path.write_bytes(head + key.encode() + struct.pack("<IH", 2, value) + rest[2:])


@pytest.mark.parametrize("count", [0, 1])
def test_a_part_that_claims_to_be_the_whole_model(shards: list[Path], tmp_path: Path, count: int) -> None:
    """`hotshoe quantize` wrote a third of such a model without a word."""
    set_u16(shards[0], "split.count", count)
    with pytest.raises(ModelFileError, match=r"its name says that the model is split into 3 files"):
        GGUFFile(shards[0])
    renamed = shards[0].rename(tmp_path / "whole.gguf")
    with pytest.raises(ModelFileError, match=r"the files hold 2 tensors; expected 5"):
        GGUFFile(renamed)
    set_u16(shards[1], "split.count", count)
    with pytest.raises(ModelFileError, match=r"the file is number 2 of 1; expected 1 of 1"):
        GGUFFile(shards[1].rename(tmp_path / "second.gguf"))


def test_a_merged_model_keeps_the_keys_of_its_first_part(shards: list[Path], tmp_path: Path) -> None:
    """llama.cpp's gguf-split --merge writes a split.count of 0."""
    with GGUFFile(shards[0]) as f:
        arrays = {name: f.array(name).copy() for name in f.tensors}
    keys = {"split.no": 0, "split.count": 0, "split.tensors.count": 5}
    with GGUFFile(write_gguf(tmp_path / "merged.gguf", keys, arrays)) as f:
        assert len(f.tensors) == 5


def test_split_model_errors(shards: list[Path], tmp_path: Path) -> None:
    second = shards[1].read_bytes()
    shards[1].unlink()
    with pytest.raises(ModelFileError, match=r"split into 3 files, and 1 .*m-00002-of-00003\.gguf"):
        GGUFFile(shards[0])
    shards[1].write_bytes(shards[2].read_bytes())
    with pytest.raises(ModelFileError, match=r"m-00002.*number 3 of 3; expected 2 of 3"):
        GGUFFile(shards[0])
    shards[1].write_bytes(second.replace(b"t2", b"t0"))
    with pytest.raises(ModelFileError, match=r"m-00002.*'t0'.*in m-00001"):
        GGUFFile(shards[2])
    shards[1].write_bytes(second[:-1000] if len(second) > 1000 else second[:-40])
    with pytest.raises(ModelFileError, match=r"m-00002.*but the file has only"):
        GGUFFile(shards[0])
    with pytest.raises(ModelFileError, match="should end in -0000N-of-00003"):
        GGUFFile(shards[0].rename(tmp_path / "renamed.gguf"))


# --- real vocabularies ----------------------------------------------------------------------------------------------


def plain_strings(raw: bytes, name: str) -> list[bytes]:
    """The strings of an array, by the loop that the definition of the format suggests."""
    needle = key(name, 9, struct.pack("<I", 8))
    pos = raw.index(needle) + len(needle)
    (count,) = struct.unpack_from("<Q", raw, pos)
    pos += 8
    out = []
    for _ in range(count):
        (n,) = struct.unpack_from("<Q", raw, pos)
        out.append(raw[pos + 8 : pos + 8 + n])
        pos += 8 + n
    return out


@pytest.mark.parametrize("name", ["bert-bge", "llama-spm", "llama-bpe", "qwen2"])
def test_vocabulary_strings(name: str) -> None:
    path = vocabulary_file(name)
    with GGUFFile(path) as f:
        raw = path.read_bytes()
        found = [k for k, v in f.metadata.items() if isinstance(v, GGUFArray) and v.type is ValueType.STRING]
        assert "tokenizer.ggml.tokens" in found
        for k in found:
            expected = plain_strings(raw, k)
            assert f.metadata[k].raw() == expected
            assert f.metadata[k].tolist() == [s.decode() for s in expected]


@pytest.mark.parametrize("name", ["bert-bge", "llama-spm"])
def test_vocabulary_as_gguf_reader_sees_it(name: str) -> None:
    path = vocabulary_file(name)
    theirs = {k: v.contents() for k, v in gguf.GGUFReader(path).fields.items() if not k.startswith("GGUF.")}
    with GGUFFile(path) as f:
        assert {k: v.tolist() if isinstance(v, GGUFArray) else v for k, v in f.metadata.items()} == theirs


def test_opening_a_large_vocabulary_makes_no_object_for_each_token() -> None:
    """151,936 tokens and as many merges are skipped over, not read: that takes 8 ms instead of a second."""
    path = vocabulary_file("qwen2")
    tracemalloc.start()
    try:
        with GGUFFile(path) as file:
            _, peak = tracemalloc.get_traced_memory()
            assert len(file.metadata["tokenizer.ggml.tokens"]) > 150_000
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20  # the texts of the tokens alone take 10 MB


# --- properties -----------------------------------------------------------------------------------------------------

# Strings that look like prefixes, begin or end with zeros, or have lengths of more than one byte.
tricky = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [b"", b"\0", b"\0" * 9, struct.pack("<Q", 5), struct.pack("<QQ", 1, 1) + b"x", b"a" * 256, b"b" * 300]
    ),
    st.text(max_size=6).map(str.encode),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(tricky, max_size=30), st.integers(1, 200), st.integers(0, 3))
def test_any_strings_are_read_back(tmp_path_factory: Any, items: list[bytes], repeat: int, plain: int) -> None:
    strings = (items + [b"word"] * 300 * plain) * repeat
    payload = array(8, len(strings), b"".join(map(text, strings)))
    path = put(tmp_path_factory.getbasetemp(), gguf_bytes([key("k", 9, payload), key("after", 7, b"\1")]), "any.gguf")
    with GGUFFile(path) as f:
        assert f.metadata["after"] is True  # so the walk ended where it should
        assert f.metadata["k"].raw() == strings
        try:
            expected = [s.decode() for s in strings]
        except UnicodeDecodeError:
            with pytest.raises(ModelFileError, match=r"key 'k'\[\d+\], byte \d+: .* is not valid UTF-8"):
                f.metadata["k"].tolist()
            with pytest.raises(ModelFileError, match=r"key 'k'\[\d+\], byte \d+: .* is not valid UTF-8"):
                f.metadata["k"].packed()
        else:
            assert f.metadata["k"].tolist() == expected
            data, bounds = f.metadata["k"].packed()
            assert [data[a + 8 : b].tobytes() for a, b in itertools.pairwise(bounds)] == strings
            assert not np.any([data[bounds[:-1] + i] for i in range(8)])


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
values = st.one_of(
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.floats(width=32, allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1),
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1),
)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, values, max_size=6), st.dictionaries(names, shapes, max_size=4))
def test_round_trip(tmp_path_factory: Any, keys: dict[str, Any], tensors: dict[str, list[int]]) -> None:
    keys = {k: v for k, v in keys.items() if k not in ("general.architecture", "general.alignment")}
    arrays = {n: np.arange(np.prod(s), dtype=np.float32).reshape(s) for n, s in tensors.items()}
    with GGUFFile(write_gguf(tmp_path_factory.getbasetemp() / "round.gguf", keys, arrays)) as f:
        assert dict(f.metadata) == {"general.architecture": "llama", **keys}
        for name, expected in arrays.items():
            np.testing.assert_array_equal(f.array(name), expected, strict=True)
