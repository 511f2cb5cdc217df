"""``hotshoe-rpc-serve``: lend this machine's CPU to hotshoe on another machine."""

from __future__ import annotations

import argparse
import ipaddress
import socket
import sys
import threading
import time
from typing import Any

from hotshoe_core.errors import HotshoeError, NativeError
from hotshoe_ggml.native import ffi, lib, load_backend, load_cpu
from hotshoe_ggml_rpc.provider import LIBRARY_DIR, split_address

__all__ = ["main", "serve"]

_MAX_CLIENTS = 64  # at once; more are refused, so that silent ones take neither all threads nor all files


def serve(host: str, port: int, n_threads: int) -> None:
    """Serve clients until the process ends, each in a thread of its own.

    Raises NativeError if the port is not free, or if the host cannot be resolved.
    """
    library = load_backend(next(LIBRARY_DIR.glob("*ggml-rpc.*")))
    serve_client = library.function("hotshoe_rpc_serve", "void (*)(int, size_t, ggml_backend_t *)")
    set_threads = load_cpu().function("ggml_backend_set_n_threads", "ggml_backend_set_n_threads_t")
    if serve_client is None or set_threads is None:
        raise NativeError(f"{library!r} has no server")

    def run(connection: Any) -> None:
        backends = []
        try:
            for facts in load_cpu().devices():
                backends.append(lib().ggml_backend_dev_init(facts.pointer, ffi.NULL))
                set_threads(backends[-1], n_threads)
            serve_client(connection.detach(), len(backends), ffi.new("ggml_backend_t[]", backends))
        finally:
            connection.close()  # unless it was detached
            for backend in backends:
                lib().ggml_backend_free(backend)
            free.release()

    free = threading.BoundedSemaphore(_MAX_CLIENTS)
    with _listen(host, port) as listener:
        print(f"hotshoe-rpc-serve: lends the CPU at {host}, port {port}, with {n_threads} threads", flush=True)
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # a client has left already; or too many files are open, until other clients leave
                time.sleep(0.01)
                continue
            if not free.acquire(blocking=False):
                connection.close()
                continue
            try:
                threading.Thread(target=run, args=(connection,), daemon=True).start()
            except RuntimeError:  # the system has no thread for it
                connection.close()
                free.release()


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        listener = socket.create_server(found[0][4], family=found[0][0], backlog=_MAX_CLIENTS)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # the accepted connections inherit it
        return listener
    except (OSError, UnicodeError) as error:  # UnicodeError: the host cannot be a name
        raise NativeError(
            f"cannot listen to port {port} of {host}: {error}",
            hint="is the port in use? try another: --listen HOST:PORT",
        ) from None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="hotshoe-rpc-serve", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:50052", metavar="HOST:PORT", help="[HOST]:PORT for IPv6")
    parser.add_argument("--threads", type=int, default=0, help="0: one for each core")
    args = parser.parse_args(argv)
    address = split_address(args.listen)
    if address is None:
        parser.error(f"--listen {args.listen}: expected HOST:PORT, or [HOST]:PORT for IPv6")
    if not 0 <= args.threads <= lib().GGML_MAX_N_THREADS:
        parser.error(f"--threads {args.threads}: expected 0 to {lib().GGML_MAX_N_THREADS}")
    host, port = address
    if not _is_loopback(host):
        print(
            f"hotshoe-rpc-serve: warning: other machines can reach {host}, and the protocol has no passwords. "
            "Anyone who reaches the port can use the device and read its memory. Use a private network or a tunnel.",
            file=sys.stderr,
        )
    from hotshoe_ggml.cpu.threads import default_threads

    try:
        serve(host, port, args.threads or default_threads())
    except HotshoeError as error:
        print(f"hotshoe-rpc-serve: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    sys.exit(main())
