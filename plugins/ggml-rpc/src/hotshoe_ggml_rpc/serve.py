"""``hotshoe-rpc-serve``: lend this machine's CPU to hotshoe on another machine."""

from __future__ import annotations

import argparse
import ipaddress
import sys

from hotshoe_core.errors import HotshoeError, NativeError
from hotshoe_ggml.native import ffi, load_backend, load_cpu
from hotshoe_ggml_rpc.provider import LIBRARY_DIR

__all__ = ["main", "serve"]

_START = "void (*)(const char *, const char *, size_t, size_t, ggml_backend_dev_t *)"


def serve(host: str, port: int, n_threads: int) -> None:
    """Serve until the process ends. Raises NativeError if the server cannot start, or stops."""
    library = load_backend(next(LIBRARY_DIR.glob("*ggml-rpc.*")))
    start = library.function("ggml_backend_rpc_start_server", _START)
    if start is None:
        raise NativeError(f"{library!r} has no server")
    pointers = [facts.pointer for facts in load_cpu().devices()]
    start(f"{host}:{port}".encode(), ffi.NULL, n_threads, len(pointers), ffi.new("ggml_backend_dev_t[]", pointers))
    raise NativeError(f"the server at {host}:{port} ended", hint="is the port in use? try another: --listen HOST:PORT")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="hotshoe-rpc-serve", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:50052", metavar="HOST:PORT")
    parser.add_argument("--threads", type=int, default=0, help="0: one for each core")
    args = parser.parse_args(argv)
    host, _, port = args.listen.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        parser.error(f"--listen {args.listen}: expected HOST:PORT")
    if not _is_loopback(host):
        print(
            f"hotshoe-rpc-serve: warning: other machines can reach {host}, and the protocol has no passwords. "
            "Anyone who reaches the port can use the device and read its memory. Use a private network or a tunnel.",
            file=sys.stderr,
        )
    from hotshoe_ggml.cpu.threads import default_threads

    try:
        serve(host, int(port), args.threads or default_threads())
    except HotshoeError as error:
        print(f"hotshoe-rpc-serve: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    sys.exit(main())
