// ggml's socket_t (transport.h) over TCP, in place of ggml's own file: with IPv6, with reasons for failures, and with a
// time limit, because the system keeps the connections of a stopped server open.
//
// A server may compute for minutes before it answers. So silence alone means nothing: after some seconds of it the
// server must answer a second connection. If it does not, the first one is lost. A server closes the connection of a
// client that does not send the first message in time, because connections are limited.
#include "transport.h"

#ifdef _WIN32
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <winsock2.h>
#include <ws2tcpip.h>
#define close closesocket
#define ioctl ioctlsocket
#define poll WSAPoll
#define SHUT_RDWR SD_BOTH
static int last_error() { return WSAGetLastError(); }
enum { WOULD_WAIT = WSAEWOULDBLOCK, IN_PROGRESS = WSAEWOULDBLOCK, INTERRUPTED = WSAEINTR };
#else
#include <cerrno>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
static int last_error() { return errno; }
enum { WOULD_WAIT = EAGAIN, IN_PROGRESS = EINPROGRESS, INTERRUPTED = EINTR };
#endif
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>

bool greets(const socket_ptr & sock); // whether the server answers the first message of the protocol: see rpc.cpp

// Seconds of silence after which a server is asked whether it is alive, and seconds for its answer.
static double limit_seconds() {
    const char * text = std::getenv("HOTSHOE_RPC_TIMEOUT");
    const double seconds = text == nullptr ? 0 : std::atof(text);
    return seconds > 0 ? seconds : 10;
}

using steady = std::chrono::steady_clock;
static std::mutex silent_mutex;
static std::map<std::pair<std::string, int>, steady::time_point> silent; // servers that did not answer, and when

// Notes that a server is silent. Returns what to say about it.
static std::string note_silent(const std::string & host, int port, double seconds) {
    std::lock_guard<std::mutex> lock(silent_mutex);
    silent[{host, port}] = steady::now();
    return "no answer for " + std::to_string((int) seconds) + " seconds";
}

struct socket_t::impl {
    intptr_t fd;
    std::string host; // of the server; empty in the server itself
    int port = 0;
    const steady::time_point opened = steady::now();
    bool is_greeted = false; // a server waits without a limit for a client that has sent the first message
    bool is_second = false;  // only asks whether the server is alive

    impl(intptr_t fd, std::string host, int port) : fd(fd), host(std::move(host)), port(port) {
        unsigned long on = 1;
        ioctl(fd, FIONBIO, &on); // no call waits, except poll
        const int no_delay = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, (const char *) &no_delay, sizeof no_delay);
    }
    ~impl() { close(fd); }

    [[noreturn]] void fail(const std::string & why) {
        shutdown(fd, SHUT_RDWR); // what follows on this connection fails at once
        throw std::runtime_error(why);
    }
    [[noreturn]] void fail(int error) { fail(std::system_category().message(error)); }
    [[noreturn]] void fail_as_silent() {
        fail(host.empty() ? "no first message" : note_silent(host, port, 2 * limit_seconds()));
    }

    // Waits until the socket can be read or written, or the limit has passed. A signal does not end it: Python handles
    // signals after the call.
    bool is_ready(short event) {
        const auto start = host.empty() ? opened : steady::now();
        const auto stop = start + std::chrono::duration<double>(limit_seconds());
        for (;;) {
            const double left = std::chrono::duration<double, std::milli>(stop - steady::now()).count();
            pollfd waiting = {(decltype(pollfd::fd)) fd, event, 0};
            const int n = poll(&waiting, 1, is_greeted ? -1 : (int) std::max(0.0, left) + 1);
            if (n > 0 || (n < 0 && last_error() != INTERRUPTED)) {
                return true; // ready, or an error that the next call returns
            }
            if (n == 0 && left <= 0) {
                return false;
            }
        }
    }
    bool is_server_alive() {
        if (is_second || host.empty()) {
            return false;
        }
        try {
            const auto second = socket_t::connect(host.c_str(), port);
            second->pimpl->is_second = true;
            return greets(second);
        } catch (const std::exception &) {
            return false;
        }
    }
    // Calls `move`, which sends or receives a part, until all of `size` bytes are done.
    template <typename F> void transfer(short event, size_t size, F move) {
        for (size_t done = 0; done < size;) {
            while (!is_ready(event)) {
                if (!is_server_alive()) {
                    fail_as_silent();
                }
            }
            const auto n = move(done, std::min(size - done, MAX_CHUNK_SIZE));
            if (n < 0 && last_error() != WOULD_WAIT && last_error() != INTERRUPTED) {
                fail(last_error());
            } else if (n == 0) {
                fail("the connection was closed");
            }
            done += n > 0 ? (size_t) n : 0;
        }
    }
};

socket_t::socket_t(std::unique_ptr<impl> p) : pimpl(std::move(p)) {}
socket_t::~socket_t() = default;

bool socket_t::send_data(const void * data, size_t size) {
    pimpl->transfer(POLLOUT, size, [&](size_t done, size_t n) {
        return send(pimpl->fd, (const char *) data + done, n, MSG_NOSIGNAL);
    });
    return true;
}

bool socket_t::recv_data(void * data, size_t size) {
    pimpl->transfer(POLLIN, size, [&](size_t done, size_t n) { return recv(pimpl->fd, (char *) data + done, n, 0); });
    return true;
}

void socket_t::get_caps(uint8_t * caps) { std::memset(caps, 0, RPC_CONN_CAPS_SIZE); }
// A server calls this when the first message is complete.
void socket_t::update_caps(const uint8_t *) { pimpl->is_greeted = pimpl->host.empty(); }

// A server that was silent just now is not tried again: a graph would try for each of its tensors.
static void require_not_silent(const char * host, int port) {
    std::lock_guard<std::mutex> lock(silent_mutex);
    const auto found = silent.find({host, port});
    if (found != silent.end()) {
        const std::chrono::duration<double> ago = steady::now() - found->second;
        const double left = 2 * limit_seconds() - ago.count();
        if (left > 0) {
            throw std::runtime_error("no answer " + std::to_string((int) ago.count()) + " seconds ago; try again in " +
                                     std::to_string((int) left + 1) + " seconds");
        }
    }
}

socket_ptr socket_t::connect(const char * host, int port) {
    require_not_silent(host, port);
    addrinfo hints = {}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int unknown = getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
    if (unknown) {
        throw std::runtime_error(gai_strerror(unknown));
    }
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
    std::string why;
    bool timed_out = false;
    for (const addrinfo * address = found; address != nullptr; address = address->ai_next) {
        const auto fd = (intptr_t) socket(address->ai_family, address->ai_socktype, address->ai_protocol);
        if (fd < 0) {
            why = std::system_category().message(last_error());
            continue;
        }
        auto made = std::make_unique<impl>(fd, host, port);
        int error = ::connect(fd, address->ai_addr, (socklen_t) address->ai_addrlen) == 0 ? 0 : last_error();
        if (error == IN_PROGRESS) {
            socklen_t size = sizeof error;
            if (!made->is_ready(POLLOUT)) {
                timed_out = true;
                continue;
            }
            getsockopt(fd, SOL_SOCKET, SO_ERROR, (char *) &error, &size);
        }
        if (error == 0) {
            return socket_ptr(new socket_t(std::move(made)));
        }
        why = std::system_category().message(error);
    }
    throw std::runtime_error(timed_out ? note_silent(host, port, limit_seconds()) : why);
}

// The server's side of a connection that Python has accepted. fd: its socket. serve.py listens and accepts.
socket_ptr socket_t::create_server(const char *, int fd) {
    return socket_ptr(new socket_t(std::make_unique<impl>(fd, "", 0)));
}
socket_ptr socket_t::accept() { return nullptr; }

bool rpc_transport_init() {
#ifdef _WIN32
    static WSADATA data;
    static const bool started = WSAStartup(MAKEWORD(2, 2), &data) == 0;
    return started;
#else
    return true;
#endif
}
void rpc_transport_shutdown() {}
